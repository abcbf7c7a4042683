"""The wheel, installed where no checkout is: it trains and merges, with its own configuration and recipes."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest
from documented import ROOT

FAST = ["train.steps=2", "train.sequence_length=32", "train.eval_batches=1", "data.vocab_size=300"]
FAST += ["model.config.n_layer=2", "model.config.n_embd=24", "lr_schedule.warmup_steps=0"]


def call(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=110, **options)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built by the build back end that is installed here, without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    call(*build, "--wheel-dir", folder, ROOT, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    (path,) = folder.glob("gooseslo-*.whl")
    return path


def test_it_holds_the_package_its_configuration_and_nothing_else(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {str(path.relative_to(ROOT)) for path in (ROOT / "gooseslo").rglob("*.py")}
    for folder in ("configs", "recipes"):
        files = (path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*.yaml"))
        expected |= {f"gooseslo/_{folder}/{name}" for name in files}
    assert names == expected


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_trains_and_merges_outside_the_checkout(wheel, tmp_path):
    """In an environment of its own; what it depends on is found in this one, gooseslo is not."""
    home = tmp_path / "environment"
    venv.create(home, with_pip=False)
    site = next(home.glob("lib/python3*/site-packages"))
    call(sys.executable, "-m", "pip", "--quiet", "--python", home / "bin" / "python", "install",
         "--no-deps", "--no-index", "--disable-pip-version-check", wheel)  # fmt: skip
    # a folder on the path is no site folder: an editable install in it is not followed
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    where = {"cwd": tmp_path, "env": clean}

    place = call(home / "bin" / "python", "-c", "import gooseslo; print(gooseslo.__file__)", **where).strip()
    assert place == str(site / "gooseslo" / "__init__.py")
    command = home / "bin" / "gooseslo"
    assert "/".join(("runs", "wheel")) in call(command, "train", "recipe=demo", "run.name=wheel", *FAST, **where)
    call(command, "merge-checkpoint", "input=runs/wheel", "output=merged", **where)
    assert {"config.json", "model.safetensors"} <= {path.name for path in (tmp_path / "merged").iterdir()}
    assert "recipe=" in call(command, "train", "--help", **where)
