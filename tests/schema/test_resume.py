"""A continued run may change its layout, not what it computes."""

import pytest
import yaml

from gooseslo.schema.compose import compose_train
from gooseslo.schema.dump import dump_yaml
from gooseslo.schema.resume import check_resume

BASE = ["data=text", "data.train=a.txt"]


def differences(old_args, new_args):
    old = yaml.safe_load(dump_yaml(compose_train([*BASE, *old_args])))
    return [fault.key for fault in check_resume(old, compose_train([*BASE, *new_args]))]


@pytest.mark.parametrize(
    "argument",
    [
        "parallel.tp=2",
        "parallel.dp=2",
        "parallel.schedule=gpipe",
        "parallel.partition=uniform",
        "train.micro_batch_size=4",
        "train.precision=fp64",
        "train.precision=bf16",
        "train.deterministic=true",
        "train.max_skipped_steps=3",
        "train.clip_grad_norm=0",
        "train.eval_every=7",
        "train.stop_after=7",
        "checkpoint.every=7",
        "launcher.workers=2",
        "logging.progress=false",
        "device=cpu",
        "run.name=other",
        "model.name=renamed",
    ],
)
def test_what_may_change(argument):
    assert differences([], [argument]) == []


@pytest.mark.parametrize(
    "argument",
    [
        "model.config.n_layer=4",
        "run.seed=1",
        "train.steps=200",
        "train.global_batch_size=16",
        "train.sequence_length=128",
        "optimizer.lr=1e-3",
        "optimizer.betas=[0.9,0.99]",
        "lr_schedule.warmup_steps=5",
        "lr_schedule.min_ratio=0",
        "data.tokenizer=gpt2",
        "data.valid=b.txt",
        "data.train=[a.txt]",
    ],
)
def test_what_is_refused(argument):
    assert differences([], [argument]) == [argument.partition("=")[0]]
    assert differences([argument], []) == [argument.partition("=")[0]]


def test_changed_groups_name_their_keys():
    keys = {"optimizer.name", "optimizer.betas", "optimizer.eps"}  # the old run, without momentum, had none: 0
    assert set(differences([], ["optimizer=sgd"])) == keys
    assert set(differences([], ["optimizer=sgd", "optimizer.momentum=0.9"])) == keys | {"optimizer.momentum"}


def test_the_horizon_grows_where_the_schedule_is_constant():
    constant = "lr_schedule=constant"
    assert differences([constant], [constant, "train.steps=200"]) == []
    assert differences([constant, "train.steps=200"], [constant]) == ["train.steps"]


def test_a_key_the_old_run_did_not_have_must_have_its_default():
    new = compose_train([*BASE, "data.text_key=body"])
    old = yaml.safe_load(dump_yaml(new))
    del old["data"]["text_key"]
    assert [fault.key for fault in check_resume(old, new)] == ["data.text_key"]
    assert check_resume(old, compose_train(BASE)) == []


def test_how_data_is_read_may_change():
    old = yaml.safe_load(dump_yaml(compose_train(["data=indexed", "data.train=a"])))
    new = compose_train(["data=indexed", "data.train=a", "data.workers=3", "data.reader=lazy"])
    assert not check_resume(old, new)
    assert [fault.key for fault in check_resume(old, compose_train(["data=indexed", "data.train=b"]))] == ["data.train"]


def test_of_a_list_the_item_that_differs_is_named():
    parts = "data.train=[{path: a, weight: 0.7, end: 0.9}, {path: b, weight: 0.3}]"
    old = yaml.safe_load(dump_yaml(compose_train(["data=indexed", parts])))
    [fault] = check_resume(old, compose_train(["data=indexed", parts.replace("0.3", "0.4")]))
    assert str(fault).startswith("data.train[1].weight=0.4: the run has 0.3, and a continued run cannot change it")
    [fault] = check_resume(old, compose_train(["data=indexed", "data.train=[{path: a, weight: 1}]"]))
    assert str(fault).startswith("data.train=[{path: a, weight: 1}]: the run has [{path: a, weight: 0.7, end: 0.9}, ")
    [fault] = check_resume(old, compose_train(["data=indexed", parts, "data.reset_at_document=true"]))
    assert "reset_at_document=true: the run has false" in str(fault) and "reset_at_document=false" in str(fault)
