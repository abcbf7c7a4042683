"""Every command of the README works as written: run where small, planned where large, and `make` has the targets."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gooseslo.cli import main
from gooseslo.engine.plan import make_plan
from gooseslo.schema.compose import compose_train

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
COMMANDS = [
    shlex.split(command, comments=True)
    for block in BLOCKS
    for line in block.splitlines()
    for command in line.split("&&")
    if command.strip()
]
OURS = [command[1:] for command in COMMANDS if command[0] == "gooseslo"]
# So small that starting the processes is what takes the time.
SMALLER = [
    "train.steps=1",
    "train.sequence_length=32",
    "train.eval_batches=1",
    "model.config.n_layer=2",
    "model.config.n_embd=24",
    "data.vocab_size=300",
]


def test_it_opens_with_the_two_commands():
    opening = BLOCKS[0].splitlines()
    assert [line.split("#")[0].strip() for line in opening] == ["make demo", "make test"]
    assert README.index("```") < 40


def test_make_has_the_targets():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = {command[1] for command in COMMANDS if command[0] == "make"}
    assert named == {"demo", "test", "install", "check", "test-slow"}
    assert named <= set(targets)


@pytest.mark.parametrize("command", [c for c in OURS if c[0] == "train"], ids=" ".join)
def test_train_commands_can_be_planned(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert make_plan(compose_train(command[1:]), num_devices=0).num_parameters > 1e6


def test_the_quick_start_runs(tmp_path):
    """In the order of the README, in one folder, with a smaller model."""
    for name in ("a.txt", "held-out.txt"):
        (tmp_path / name).write_text("goose honk pond egg reed wing nest\n" * 400, encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{"text": "goose honk"}\n' * 50, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    ran = []
    for verb, *args in OURS:
        if "model=gpt2" in args:
            continue  # planned above: minutes on a CPU
        smaller = {"train": SMALLER, "generate": ["max_new_tokens=4"]}.get(verb, [])
        command = [sys.executable, "-m", "gooseslo", verb, *args, *smaller]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        ran.append(verb)
    assert ran == ["train", "merge-checkpoint", "generate", "train"]
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_the_commands_of_the_table_are_the_verbs(capfd):
    main(["--help"])
    listed = set(re.findall(r"^  ([a-z-]+)  ", capfd.readouterr().out, re.MULTILINE))
    assert {
        re.match(r"gooseslo ([a-z-]+)", cell)[1] for cell in re.findall(r"^\| `(gooseslo .*?)`", README, re.M)
    } == listed
