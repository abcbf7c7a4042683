"""Every shipped YAML composes, is a whole job, and is what its name says."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gooseslo
from gooseslo.schema.compose import compose_train
from gooseslo.schema.store import config_folders, group_names, group_options

NEEDED = {
    ("data", "text"): ["data.train=a.txt"],
    ("data", "indexed"): ["data.train=a"],
    ("data", "instruction"): ["data.train=a.jsonl"],
    ("data", "classification"): ["data.train=a.jsonl", "model.head=sequence-classification"],
}
OPTIONS = [(group, option) for group in group_names() for option in group_options(group)]


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_an_option_composes(group, option):
    job = compose_train([f"{group}={option}", *NEEDED.get((group, option), [])])
    if hasattr(getattr(job, group, None), "name"):
        assert getattr(job, group).name == {"torch": "Adam"}.get(option, option)


def test_the_option_a_group_has_is_a_file():
    configs, recipes = config_folders()
    files = {(path.parent.name, path.stem) for path in configs.glob("*/*.yaml")}
    assert files | {("recipe", path.stem) for path in recipes.glob("*.yaml")} == set(OPTIONS)


@pytest.mark.parametrize(
    ("model", "millions"),
    [("gpt2-tiny", 8.5), ("gpt2", 124.4), ("gpt2-medium", 354.8), ("gpt2-large", 774.0), ("gpt2-xl", 1557.6)],
)
def test_a_model_has_its_published_size(model, millions):
    config = compose_train([f"model={model}"]).model.config
    width, layers = config["n_embd"], config["n_layer"]
    # Per block: attention 4 w^2 + 4 w, MLP 8 w^2 + 5 w, two norms 4 w; then the last norm; the head is tied.
    tables = (config["vocab_size"] + config["n_positions"]) * width
    assert (tables + layers * (12 * width**2 + 13 * width) + 2 * width) / 1e6 == pytest.approx(millions, abs=0.06)
    assert width % config["n_head"] == 0


def test_a_recipe_says_how_it_is_run():
    for path in config_folders()[1].glob("*.yaml"):
        head = path.read_text().partition("\ndefaults")[0]
        assert "# Hardware:" in head and f"# Command:  gooseslo train recipe={path.stem}" in head


def test_a_wheel_finds_its_configuration(tmp_path):
    """Laid out as the wheel is: the folders inside the package, and somebody else's `configs` beside it."""
    package = tmp_path / "site" / "gooseslo"
    shutil.copytree(Path(gooseslo.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in config_folders():
        shutil.copytree(folder, package / f"_{folder.name.lstrip('_')}", dirs_exist_ok=True)
    (tmp_path / "site" / "configs").mkdir()
    code = "from gooseslo.schema.compose import compose_train; print(compose_train(['recipe=demo']).parallel.tp)"
    env = {"PYTHONPATH": str(tmp_path / "site"), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "2\n", done.stderr
