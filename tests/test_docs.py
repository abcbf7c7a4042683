"""The documentation holds: every command works as written, every link leads somewhere, no key is made up."""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documented import ROOT, Command, Script, commands, steps

from gooseslo.cli import read_flags
from gooseslo.engine.plan import make_plan
from gooseslo.schema import compose
from gooseslo.schema.groups import TrainJob
from gooseslo.schema.keys import OPEN_KEYS, all_keys, open_key_above

PAGES = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))]
GOOSESLO = [(page, command) for page in PAGES for command in commands(page, "gooseslo")]
# So small that starting the processes is what takes the time.
SMALLER = ["train.sequence_length=32", "train.eval_batches=1", "model.config.n_layer=2", "model.config.n_embd=24"]
OTHERS = {"git", "cd", "make", "source", "tensorboard", "wandb"}
WRONG = {"parallel.tp=5"}
"""Shown because they fail."""


@pytest.mark.parametrize("page, command", GOOSESLO, ids=str)
def test_a_command_composes(page, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    verb, *args = command.words[1:]
    overrides = read_flags(args).overrides
    if verb == "train" and not WRONG & set(args):
        assert make_plan(compose.compose_train(overrides), num_devices=0).num_parameters > 1e6
    elif verb != "train":
        (tmp_path / "runs" / "first" / "merged").mkdir(parents=True)
        getattr(compose, f"compose_{verb.partition('-')[0]}")(overrides)


def test_commands_of_every_page_are_seen():
    """A block marked as another language would only be looked at."""
    for page in PAGES:
        marked = re.findall(r"^```(?:bash|sh|shell|console)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert not marked, page
    assert any("zero.backend=deepspeed" in command.words for _, command in GOOSESLO)


def test_other_programs_are_there():
    used = {step.words[0] for page in PAGES for step in steps(page) if isinstance(step, Command)}
    assert used <= OTHERS | {"gooseslo"}
    scripts = {entry.name for entry in importlib.metadata.entry_points(group="console_scripts")}
    assert {"tensorboard", "wandb"} <= scripts
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {command.words[1] for page in PAGES for command in commands(page, "make")} <= set(targets)


def run(step, folder, cache):
    """One step of a page, as its reader takes it, with a smaller model."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"XDG_CACHE_HOME": str(cache)}
    if isinstance(step, Script):
        (folder / "script.py").write_text(step.source, encoding="utf-8")
        command = [sys.executable, "script.py"]
    else:
        verb, *args = step.words[1:]
        vocabulary = [] if verb != "train" else ["data.vocab_size=300"]
        smaller = {"train": [*SMALLER, *vocabulary], "generate": ["max_new_tokens=4"]}.get(verb, [])
        command = [sys.executable, "-m", "gooseslo", verb, *args, *smaller]
        environment |= dict(variable.split("=", 1) for variable in step.variables)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ["docs/quickstart.md", "docs/debugging.md", "docs/data.md", "docs/training.md"])
def test_a_page_can_be_followed_from_its_top_to_its_end(page, tmp_path):
    for name in ("a.txt", "held-out.txt"):
        (tmp_path / name).write_text("goose honk pond egg reed wing nest\n" * 400, encoding="utf-8")
    records = {"b": '{"text": "goose honk"}', "pairs": '{"prompt": "goose? ", "response": "honk"}'}
    records["moods"] = '{"text": "honk", "label": "glad"}\n{"text": "hiss", "label": "cross"}'
    for name, record in records.items():
        (tmp_path / f"{name}.jsonl").write_text(f"{record}\n" * 50, encoding="utf-8")
    outputs = []
    for step in steps(page):
        if isinstance(step, Command) and (step.words[0] in OTHERS or "model=gpt2" in step.words):
            continue  # checked above; or minutes on a CPU
        done = run(step, tmp_path, tmp_path / "cache")
        wrong = isinstance(step, Command) and WRONG & set(step.words)
        assert done.returncode == (2 if wrong else 0), f"{step}\n{done.stdout}\n{done.stderr}"
        assert ("Traceback" in done.stderr) == bool(wrong)
        outputs.append(done.stdout)
    if page.endswith("quickstart.md"):
        assert "finished already" in outputs[2] and len(list((tmp_path / "runs").iterdir())) == 4
    elif page.endswith("data.md"):
        assert "data/both: 450 documents, " in outputs[2] and "goose honk" in outputs[3]
        assert all((tmp_path / "data" / f"{name}.idx").exists() for name in "abcd")
    elif page.endswith("training.md"):
        runs = {path.name: (path / "metrics.jsonl").read_text() for path in (tmp_path / "runs").iterdir()}
        assert set(runs) == {"rmsprop", "adafactor", "amsgrad", "fp16", "checked", "ahead"}
        assert all(lines.count('"kind": "train"') == 4 for lines in runs.values())
        assert runs["fp16"].count('"loss_scale": 65536.0') == 4
    else:
        table = [line.split() for line in outputs[2].splitlines()]
        assert [int(step) for step, *_ in table] == [1, 2, 3, 4] and all(float(line[3]) < 1e-10 for line in table)
        assert "every loss, gradient and weight agrees\n" in outputs


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    for link in links:
        assert link.startswith("https://") or (ROOT / page).parent.joinpath(link).exists(), link


def test_every_page_is_in_the_index_and_every_decision_in_its_own():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"} <= set(
        re.findall(r"\]\((.+?)\)", index)
    )
    decisions = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    files = {path.name for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md")}
    assert files == set(re.findall(r"\]\((.+?)\)", decisions))


def test_keys_in_the_text_exist():
    keys = set(all_keys(TrainJob))
    groups = {key.partition(".")[0] for key in keys if "." in key}
    for page in ("README.md", "docs/quickstart.md", "docs/debugging.md", "docs/training.md"):
        for word in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)(?:=[^`]*)?`", (ROOT / page).read_text(encoding="utf-8")):
            if word.partition(".")[0] in groups:
                assert word in keys or open_key_above(word), f"{page}: {word}"


def test_the_configuration_page_is_what_the_schemas_say():
    spec = importlib.util.spec_from_file_location("configuration_page", ROOT / "tools" / "configuration_page.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    page = module.page()
    assert module.PAGE.read_text(encoding="utf-8") == page, "run python tools/configuration_page.py"
    for key in all_keys(TrainJob):
        key = f"{key}.FIELD" if key in OPEN_KEYS else key
        row = next(line for line in page.splitlines() if line.startswith(f"| `{key}` |"))
        assert row.count("|") - row.count("\\|") == 5 and not row.endswith("|  |"), f"{key} has no text"


def test_the_check_of_the_page_finds_a_change(tmp_path):
    tool = (ROOT / "tools" / "configuration_page.py").read_text(encoding="utf-8")
    for folder in ("tools", "docs"):
        (tmp_path / folder).mkdir()
    copy = tmp_path / "tools" / "page.py"
    copy.write_text(tool, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def call(*args):
        return subprocess.run(
            [sys.executable, copy, *args], env=environment, capture_output=True, timeout=60
        ).returncode

    page = Path(tmp_path / "docs" / "configuration.md")
    assert call("--check") == 1 and not page.exists()
    assert call() == 0 and call("--check") == 0
    page.write_text(page.read_text().replace("| `100` |", "| `99` |", 1))
    assert call("--check") == 1
