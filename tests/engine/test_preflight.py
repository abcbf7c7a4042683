"""What files, devices and values can show is found before a model class is imported, and nothing is made."""

import datetime
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gooseslo.engine.hf import empty_model
from gooseslo.engine.model_config import check_against_model, make_config
from gooseslo.engine.preflight import preflight
from gooseslo.engine.run_folder import open_run_folder
from gooseslo.errors import ConfigError, GooseError
from gooseslo.schema.compose import compose_train
from gooseslo.schema.dump import dump_yaml

BAD = [
    "parallel.tp=0", "parallel.tp=-2", "parallel.pp=0", "parallel.dp=0", "parallel.partition=[3,x]",
    "parallel.partition=[]", "parallel.partition=[2.5]", "parallel.partition=[null]", "parallel.schedule=x",
    "train.global_batch_size=0", "train.micro_batch_size=0", "train.sequence_length=0", "train.steps=0",
    "launcher.workers=0", "data.vocab_size=0", "model.config.n_head=0", "model.config.n_layer=-1",
    "model.config.vocab_size=0", "model.config.resid_pdrop=2", "model.config.initializer_range=-0.1",
]  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_run(name, *args):
    """A run folder as a run leaves it before its first save; open until closed."""
    job = compose_train([f"run.name={name}", *args])
    folder = open_run_folder(name=name, directory=None, model_name="m", now=datetime.datetime(2026, 1, 2))
    folder.describe(config_yaml=dump_yaml(job), overrides=[], plan="", environment={})
    return folder


def test_faulty_values_together_are_faults_and_no_crash():
    """A check must not lean on a value that another check refuses."""
    for pair in itertools.pairwise([*BAD, *BAD[::5], BAD[0]]):
        with pytest.raises(ConfigError) as caught:
            compose_train(pair, check_further=check_against_model)
        assert caught.value.faults


@pytest.mark.parametrize("field", ["activation_function=honk", "n_inner=0", "n_inner=-3"])
def test_a_model_that_cannot_be_is_a_fault(field):
    name, _, value = field.partition("=")
    fields = {"n_layer": 1, "n_embd": 8, "n_head": 1, name: int(value) if name == "n_inner" else value}
    with pytest.raises(ConfigError, match=r"model\.config.*(honk|must be at least 1)"):
        empty_model(make_config("gpt2", fields))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["data=text", "data.train=absent.txt"], "absent.txt: no such file"),
        (["data=text", "data.train=[text.txt,empty.txt]"], "empty.txt: the file is empty"),
        (["run.dir=text.txt"], "run.dir=text.txt: text.txt is a file"),
        (["run.dir=text.txt/below"], "text.txt is a file"),
        (["run.dir=photos"], "run.dir=photos: .* is not a run"),
        (["run.name=live"], "run.name=live: another live run"),
        (["checkpoint.resume=photos"], "checkpoint.resume=photos: is not a step folder"),
        (["run.name=garbled", "checkpoint.resume=runs/garbled/checkpoints/step-00000001"], "digest"),
    ],
)
def test_what_files_show_is_refused_with_nothing_made(here, args, words):
    (here / "text.txt").write_text("goose")
    (here / "empty.txt").write_text("")
    (here / "photos").mkdir()
    (here / "photos" / "cat.jpg").write_text("")
    live = make_run("live")
    make_run("garbled").close()
    step = here / "runs" / "garbled" / "checkpoints" / "step-00000001"
    step.mkdir()
    (step / "manifest.json").write_text('{"format": 1}')
    before = sorted(here.rglob("*"))
    with pytest.raises(GooseError, match=words) as caught:
        preflight(compose_train(args))
    assert caught.value.exit_code == 2
    assert sorted(here.rglob("*")) == before
    live.close()


def test_a_folder_that_is_free_or_can_be_continued_passes(here):
    make_run("old").close()
    (here / "empty").mkdir()
    for args in ([], ["run.name=new"], ["run.name=old"], ["run.dir=empty"], ["run.dir=a/b/c"]):
        preflight(compose_train(args))
    assert not (here / "a").exists()


def test_the_answer_needs_no_model_class():
    code = (
        "import sys, gooseslo.engine.preflight, gooseslo.engine.model_config\n"
        "sys.exit(any(name.endswith(('modeling_utils', 'modeling_auto', 'modeling_gpt2')) for name in sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
