"""Keys, groups, recipes and files compose to one job; everything unknown is refused with the nearest name."""

import dataclasses
import json
import os
import re

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gooseslo.errors import ConfigError
from gooseslo.schema.compose import compose_generate, compose_merge, compose_train
from gooseslo.schema.data_groups import TextDataConfig
from gooseslo.schema.dump import dump_yaml
from gooseslo.schema.groups import AdamWConfig, SGDConfig, TrainJob


@pytest.fixture
def config_file(tmp_path):
    def write(text):
        path = tmp_path / "config.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def faults_of(args, **options):
    with pytest.raises(ConfigError) as error:
        compose_train(args, **options)
    for fault in error.value.faults:
        assert len(str(fault).splitlines()) <= 5
    return {fault.key: str(fault) for fault in error.value.faults}


def test_groups_keep_their_subclasses():
    job = compose_train(["optimizer=sgd", "optimizer.momentum=0.9", "data=text", "data.train=a.txt"])
    assert isinstance(job.optimizer, SGDConfig) and job.optimizer.momentum == 0.9
    assert isinstance(job.data, TextDataConfig)


def test_the_last_word_counts():
    job = compose_train(["optimizer=adamw", "train.steps=1", "optimizer=sgd", "train.steps=2"])
    assert isinstance(job.optimizer, SGDConfig) and job.train.steps == 2


def test_a_name_chooses_the_option():
    assert isinstance(compose_train(["optimizer.name=sgd"]).optimizer, SGDConfig)
    assert compose_train(["model.name=gpt2-xl"]).model.config["n_layer"] == 48
    assert compose_train(["model.name=mine"]).model.config["n_layer"] == 6
    assert "contradicts" in faults_of(["optimizer=adamw", "optimizer.name=sgd"])["optimizer.name"]


def test_model_fields_need_no_plus():
    job = compose_train(
        ["model.config.scale_attn_weights=false", "+model.config.n_embd=64", "++model.config.a.b=[1,x]"]
    )
    assert job.model.config["scale_attn_weights"] is False
    assert job.model.config["n_embd"] == 64
    assert job.model.config["a"] == {"b": [1, "x"]}
    assert "n_head" not in compose_train(["~model.config.n_head"]).model.config
    assert compose_train(["model.config={n_layer: 2}"]).model.config["n_layer"] == 2


def test_the_command_line_wins_over_the_recipe():
    assert compose_train(["recipe=demo"]).parallel.tp == 2
    job = compose_train(["recipe=demo", "parallel.tp=1", "model=gpt2"])
    assert (job.parallel.tp, job.parallel.pp, job.model.name) == (1, 2, "gpt2")


@pytest.mark.parametrize(
    ("argument", "nearest"),
    [
        ("paralel.tp=2", "parallel.tp"),
        ("train.lrr=1e-4", "optimizer.lr"),
        ("optimzer=sgd", "optimizer"),
        ("optimizer=sdg", "sgd"),
        ("model=gpt2-smal", "gpt2-xl, |nearest: gpt2"),
        ("batch_size=4", "batch_size"),
        ("~model.config.n_layers", "~model.config.n_layer"),
        ("model.n_layer=3", "model.config.n_layer"),
        ("+train.stepps=3", "train.steps"),
        ("++train.stepps=3", "train.steps"),
        ("train.precision=fp23", "fp32"),
        ("optimizer.momentum=0.9", "optimizer=sgd"),
        ("hydra.ouput_subdir=x", "no such key"),
        ("hydra.run.dir=x", "no such key"),
        ("train=5", "steps"),
        ("train", "key=value"),
        ("--train.steps=5", "no dashes"),
        ("~train.steps", "cannot be removed"),
        ("~optimizer", "always has an option"),
        ("optimizer@train=sgd", "no such key"),
    ],
)
def test_a_wrong_argument_names_the_way_out(argument, nearest):
    (message,) = faults_of([argument]).values()
    assert re.search(nearest, message)


def test_all_faults_are_reported_together():
    found = faults_of(
        ["paralel.tp=2", "parallel.pp=2.0", "optimizer=adam", "train.precision=int8", "train.clip_grad_norm=-1"]
    )
    assert set(found) == {"paralel.tp", "parallel.pp", "optimizer", "train.precision", "train.clip_grad_norm"}
    found = faults_of(["train.micro_batch_size=x", "train.global_batch_size=5"])
    assert set(found) == {"train.micro_batch_size"}, "what follows from a value that was refused is noise"
    found = faults_of(["train=5", "train.precision=int8"])
    assert set(found) == {"train", "train.precision"}


def test_a_long_value_is_cut(tmp_path):
    (message,) = faults_of(["parallel.tp=" + "x\n" * 1000]).values()
    assert len(message) < 300 and len(message.splitlines()) <= 5


def test_file_keys_are_checked_like_typed_ones(config_file):
    path = config_file("paralel:\n  tp: 2\ntrain:\n  lrr: 1e-4\nhydra:\n  ouput_subdir: x\nrun:\n  seed: 010\n")
    found = faults_of([], config_file=path)
    assert set(found) == {"paralel.tp", "train.lrr", "hydra.ouput_subdir", "run.seed"}
    assert "parallel.tp" in found["paralel.tp"] and "line 2" in found["paralel.tp"]
    assert "line 8" in found["run.seed"]


def test_file_text_is_not_reinterpreted(config_file):
    path = config_file("run:\n  name: 12:30\n  dir: 2024_01\ntrain: {precision: fp32}\noptimizer: {lr: '1e-4'}\n")
    job = compose_train([], config_file=path)
    assert (job.run.name, job.run.dir, job.optimizer.lr) == ("12:30", "2024_01", 1e-4)


@pytest.mark.parametrize(
    "text",
    [
        "checkpoint: {final: yes}",
        "parallel: {tp: 2.0}",
        "parallel: {tp: null}",
        "parallel: {tp: 0b11}",
        "train: {steps: 1:30}",
        "optimizer: {lr: .inf}",
        "train: 5",
        "- a",
        "a: [",
        "train: {steps: 1, steps: 2}",
        "a: &x 1\nb: *x",
        "[1]: 2",
        "a: \x07",
        "optimizer: {name: adagrad}",
    ],
)
def test_a_bad_file_is_refused(config_file, text):
    faults_of([], config_file=config_file(text))


def test_a_file_that_cannot_be_read(tmp_path):
    assert "No such file" in faults_of([], config_file=tmp_path / "absent.yaml")["--config-file"]
    (tmp_path / "latin.yaml").write_bytes(b"run:\n  name: \xe9\n")
    assert "line 2" in faults_of([], config_file=tmp_path / "latin.yaml")["--config-file"]
    assert "cannot be read" in faults_of([], config_file=tmp_path)["--config-file"]


def test_a_file_chooses_groups_and_the_command_line_wins(config_file):
    path = config_file("optimizer: {name: sgd, momentum: 0.5}\nmodel: gpt2\ntrain.steps: 7\nparallel: {tp: 2}\n")
    job = compose_train(["parallel.tp=1"], config_file=path)
    assert job.optimizer == SGDConfig(momentum=0.5)
    assert (job.model.name, job.train.steps, job.parallel.tp) == ("gpt2", 7, 1)
    other = compose_train(["optimizer=adamw", "model=gpt2-large"], config_file=path)
    assert other.optimizer == AdamWConfig() and other.model.config["n_layer"] == 36


def test_a_typed_name_or_folder_is_a_run_of_its_own(config_file):
    path = config_file("run: {name: old, dir: old-folder}\n")

    def run(*args):
        job = compose_train(args, config_file=path)
        return job.run.name, job.run.dir

    assert run() == ("old", "old-folder")
    assert run("run.name=again") == ("again", None)
    assert run("run.dir=new") == (None, "new")
    assert run("run.dir=new", "run.dir=null", "run.name=again") == ("again", None)
    assert run("run.name=null") == (None, "old-folder")
    assert run("run.name='null'") == ("null", None)
    assert "run.dir is given too" in faults_of(["run.name=a", "run.dir=b"])["run.name"]


def test_a_model_removed_field_stays_removed(config_file):
    job = compose_train(["~model.config.resid_pdrop", "model.name=gpt2-tiny"])
    assert compose_train([], config_file=config_file(dump_yaml(job))) == job


def test_other_verbs_take_files_too(tmp_path, config_file):
    path = config_file(f"model: {{path: {json.dumps(str(tmp_path))}}}\nprompt: yes\ntop_k: 3\n")
    job = compose_generate(["top_k=4"], config_file=path)
    assert (job.prompt, job.top_k) == ("yes", 4)
    with pytest.raises(ConfigError, match="nearest: top_k"):
        compose_generate([f"model.path={tmp_path}", "topk=3"])


TEXT = st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable() and "/" not in text and text.strip(" ."))
PATH = st.text(min_size=1, max_size=20)
FIELD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(min_size=1, max_size=4), inner, max_size=2),
    max_leaves=4,
)


@settings(
    max_examples=20,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    name=TEXT | st.sampled_from(["010", "null", "1e-4", "~", "yes", "12:30"]),
    path=PATH,
    lr=st.floats(0, 1e9),
    field=FIELD,
)
def test_a_saved_config_reloads_to_the_same_job(tmp_path, name, path, lr, field):
    base = compose_train(["optimizer=sgd", "data=text", "data.train=x"])
    job = dataclasses.replace(
        base,
        run=dataclasses.replace(base.run, name=name, dir=path),
        optimizer=dataclasses.replace(base.optimizer, lr=lr),
        model=dataclasses.replace(base.model, config=base.model.config | {"field": field}),
        data=dataclasses.replace(base.data, train=[path, {"path": path, "start": 0, "end": 0.5}], valid=path),
    )
    saved = tmp_path / "config.yaml"
    saved.write_text(dump_yaml(job), encoding="utf-8", newline="")
    assert compose_train([], config_file=saved) == job


def test_saved_text_never_turns_into_a_number(config_file):
    words = [
        "1e-4",
        "1_0",
        "010",
        ".5",
        "1.",
        "NULL",
        "~",
        "True",
        "off",
        "inf",
        "12:30",
        "",
        "[1]",
        "${x}",
        "a: b",
        "#",
    ]
    fields = {f"field_{index}": word for index, word in enumerate(words)}
    job = compose_train(["run.dir=caf\udce9", "model.name=gpt2-tiny"])
    job = dataclasses.replace(job, model=dataclasses.replace(job.model, config={**fields, "all": words}))
    assert compose_train([], config_file=config_file(dump_yaml(job))) == job


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    from hydra.core.global_hydra import GlobalHydra

    monkeypatch.chdir(tmp_path)
    compose_train(["recipe=demo"])
    faults_of(["train.lrr=1"])
    assert os.listdir(tmp_path) == []
    assert not GlobalHydra().is_initialized()


def test_the_files_say_what_the_classes_say():
    job = compose_train([])
    assert dataclasses.replace(job, model=TrainJob().model) == TrainJob()


def test_merge_checks_its_folders(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError) as error:
        compose_merge([f"input={tmp_path / 'absent'}", f"output={tmp_path / 'full'}", "model.step=lastest"])
    assert {fault.key for fault in error.value.faults} == {"input", "output", "model.step"}
    with pytest.raises(ConfigError, match=r"input: is required\n.*\noutput: is required"):
        compose_merge([])
    empty = tmp_path / "empty"
    empty.mkdir()
    assert compose_merge([f"input={tmp_path}", f"output={empty}", "model.step=20"]).model.step == "20"


def test_merge_refuses_an_output_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"output=.*: .*file is not a folder"):
        compose_merge([f"input={tmp_path}", f"output={tmp_path / 'file' / 'a' / 'b'}"])
