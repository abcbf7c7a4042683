"""How an optimizer is chosen and given arguments, what is refused, and that a file and a continued run keep them."""

import dataclasses

import pytest
import yaml

from gooseslo.errors import ConfigError
from gooseslo.schema.compose import compose_train
from gooseslo.schema.dump import dump_yaml
from gooseslo.schema.groups import AdafactorConfig, AdamWConfig, TorchOptimizerConfig
from gooseslo.schema.resume import check_resume

CONSTANT = ["lr_schedule=constant", "lr_schedule.warmup_steps=0"]


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        (["optimizer.name=RMSprop"], TorchOptimizerConfig(name="RMSprop")),
        (["optimizer=torch", "optimizer.name=RMSprop"], TorchOptimizerConfig(name="RMSprop")),
        (["optimizer.name=AdamW", "optimizer.eps=1e-6"], AdamWConfig(eps=1e-6)),
        (["optimizer.name=Adafactor"], AdafactorConfig()),
        (["optimizer=adafactor", "optimizer.options.eps=[null,1e-2]"], AdafactorConfig(options={"eps": [None, 1e-2]})),
        (["optimizer.options.amsgrad=true"], AdamWConfig(options={"amsgrad": True})),
        (
            ["optimizer.name=RMSprop", "optimizer.options={alpha: 0.9}", "optimizer.options.momentum=0.5"],
            TorchOptimizerConfig(name="RMSprop", options={"alpha": 0.9, "momentum": 0.5}),
        ),
        (
            ["optimizer.name=RMSprop", 'optimizer.groups={"*.bias": {alpha: 0.5}}'],
            TorchOptimizerConfig(name="RMSprop", groups={"*.bias": {"alpha": 0.5}}),
        ),
        (
            ["optimizer.name=Rprop", "optimizer.options.etas=[0.4,1.3]", *CONSTANT],
            TorchOptimizerConfig(name="Rprop", options={"etas": [0.4, 1.3]}),
        ),
    ],
    ids=str,
)
def test_an_optimizer_is_chosen_and_kept_by_the_file_of_its_run(arguments, config, tmp_path):
    job = compose_train(arguments)
    assert job.optimizer == config
    (tmp_path / "config.yaml").write_text(dump_yaml(job), encoding="utf-8")
    again = compose_train([], config_file=tmp_path / "config.yaml")
    assert again == job
    other = compose_train(["optimizer=sgd"], config_file=tmp_path / "config.yaml")
    assert other.optimizer.name == "sgd" and other.optimizer.options == {}


@pytest.mark.parametrize(
    ("arguments", "key", "words"),
    [
        (
            ["optimizer.name=rmsprp"],
            "optimizer.name",
            ["no such optimizer", "nearest: RMSprop", "adamw, sgd, adafactor"],
        ),
        (["optimizer.name=xyz"], "optimizer.name", ["no such optimizer", "choices:"]),
        (["optimizer=RMSprop"], "optimizer", ["no such option", "give optimizer.name=RMSprop"]),
        (["optimizer=sgd", "optimizer.name=RMSprop"], "optimizer.name", ["contradicts optimizer=sgd"]),
        (["optimizer.name=LBFGS"], "optimizer.name", ["computes the loss several times"]),
        (["optimizer.name=SparseAdam"], "optimizer.name", ["sparse gradients"]),
        (["optimizer.name=Muon"], "optimizer.name", ["matrices alone"]),
        (["optimizer.options.amsgard=true"], "optimizer.options.amsgard", ["no such argument", "nearest: amsgrad"]),
        (["optimizer.options.amsgrad=1"], "optimizer.options.amsgrad", ["must be true or false"]),
        (["optimizer.options.eps=1"], "optimizer.options.eps", ["key of its own", "give optimizer.eps"]),
        (["optimizer.options.fused=false"], "optimizer.options.fused", ["gooseslo decides"]),
        (["optimizer.name=Rprop", "optimizer.options.etas=[1]", *CONSTANT], "optimizer.options.etas", ["2 numbers"]),
        (["optimizer.name=Rprop"], "lr_schedule", ["the first update alone", "lr_schedule=constant"]),
        (
            ["optimizer.name=Rprop", "optimizer.weight_decay=0.1", *CONSTANT],
            "optimizer.weight_decay",
            ["has no weight"],
        ),
        (["optimizer=adafactor", "parallel.tp=2"], "parallel.tp", ["each weight whole", "nearest: parallel.tp=1"]),
        (["optimizer=adafactor", "zero.stage=1"], "zero.stage", ["each weight whole", "nearest: zero.stage=0"]),
        (
            ["optimizer.name=RMSprop", 'optimizer.groups={"*": {alpha: x}}'],
            "optimizer.groups",
            ["alpha must be a number"],
        ),
        (["optimizer.name=RMSprop", 'optimizer.groups={"*": {alhpa: 1}}'], "optimizer.groups", ["nearest: alpha"]),
        (["~optimizer.options.alpha"], "~optimizer.options.alpha", ["is not there"]),
        (["optimizer.options=3"], "optimizer.options", ["is not a mapping"]),
        (["train.loss_scale=8"], "train.loss_scale", ["no meaning with train.precision=auto"]),
        (["train.loss_scale=0.5", "train.precision=fp16"], "train.loss_scale", ["at least 1"]),
    ],
    ids=str,
)
def test_what_is_refused(arguments, key, words):
    with pytest.raises(ConfigError) as error:
        compose_train(arguments)
    (fault,) = error.value.faults
    assert fault.key == key and len(str(fault).splitlines()) <= 5
    for word in words:
        assert word in str(fault)


def test_whole_weights_are_had_over_pipeline_and_data():
    job = compose_train(["optimizer=adafactor", "parallel.pp=2", "parallel.dp=2"])
    assert job.optimizer == AdafactorConfig()


def test_fp16_is_computed_by_masters_or_autocast_with_a_scale_or_without():
    for more in ([], ["train.bf16_mode=autocast"], ["train.loss_scale=1024"]):
        assert compose_train(["train.precision=fp16", *more]).train.precision == "fp16"


def test_a_continued_run_keeps_its_arguments():
    job = compose_train(["optimizer.options.amsgrad=true"])
    old = yaml.safe_load(dump_yaml(job))
    assert check_resume(old, job) == []
    (fault,) = check_resume(old, compose_train([]))
    assert fault.key == "optimizer.options" and "{amsgrad: true}" in fault.rule
    del old["optimizer"]["options"], old["debug"], old["train"]["loss_scale"]  # a run of an earlier version
    assert check_resume(old, dataclasses.replace(job, optimizer=AdamWConfig())) == []
    assert [fault.key for fault in check_resume(old, job)] == ["optimizer.options"]
