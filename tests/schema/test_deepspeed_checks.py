"""What the DeepSpeed back end of ZeRO does not run is refused before launch, and the torch back end runs it."""

import re

import pytest
from test_checks import job_with, messages

from gooseslo.engine.deepspeed import check_settings
from gooseslo.errors import ConfigError

PIPELINE = {"parallel__pp": 2, "parallel__schedule": "1f1b"}
REFUSED = [
    ({"zero__stage": 0, **PIPELINE}, "zero.stage=0"),
    ({"zero__stage": 2, **PIPELINE}, "zero.stage=2"),
    ({"zero__stage": 3, **PIPELINE}, "zero.stage=3"),
    ({"zero__stage": 1, "parallel__pp": 2, "parallel__schedule": "zbv"}, "parallel.schedule=zbv"),
    ({"zero__stage": 1, "parallel__pp": 2, "parallel__virtual_stages": 2}, "parallel.virtual_stages=2"),
    ({"zero__stage": 1, "train__precision": "bf16"}, "train.precision=bf16"),
    ({"zero__stage": 1, "train__precision": "fp64"}, "train.precision=fp64"),
    ({"zero__stage": 1, "zero__shard_size": 1}, "zero.shard_size=1"),
    ({"zero__stage": 1, "zero__offload": True}, "zero.offload=true"),
]


@pytest.mark.parametrize(("keys", "key"), REFUSED)
def test_the_rest_is_refused_and_runs_by_torch(keys, key):
    (message,) = messages(job_with(zero__backend="deepspeed", **keys))
    assert message.startswith(f"{key}: zero.backend=deepspeed "), message
    assert "zero.backend=torch" in message
    assert messages(job_with(**keys)) == []


@pytest.mark.parametrize(
    "keys",
    [
        {"zero__stage": 0},
        {"zero__stage": 2},
        {"zero__stage": 3},
        {"zero__stage": 1, **PIPELINE},
        {"zero__stage": 1, "parallel__pp": 2, "parallel__schedule": "gpipe"},
        {"zero__stage": 1, "train__precision": "bf16", "train__bf16_mode": "autocast"},
    ],
)
def test_what_runs_is_not_refused(keys):
    assert messages(job_with(zero__backend="deepspeed", **keys)) == []


def test_there_are_two():
    (message,) = messages(job_with(zero__backend="fairscale"))
    assert message.startswith("zero.backend=fairscale: no such choice") and "torch, deepspeed" in message


def test_it_is_missing(monkeypatch):
    monkeypatch.setattr("gooseslo.schema.zero.find_spec", lambda name: None)
    (message,) = messages(job_with(zero__backend="deepspeed", zero__stage=1))
    assert message.startswith("zero.backend=deepspeed: deepspeed is not installed") and "pip install" in message


@pytest.mark.parametrize(
    ("settings", "key", "said"),
    [
        ({"optimizer": {"type": "Adam"}}, "zero.deepspeed.optimizer=", "give optimizer"),
        ({"gradient_clipping": 1.0}, "zero.deepspeed.gradient_clipping=1.0", "give train.clip_grad_norm"),
        ({"fp16": {"enabled": True}}, "zero.deepspeed.fp16=", "give train.precision"),
        ({"zero_optimization": {"stage": 2}}, "zero.deepspeed.zero_optimization.stage=2", "give zero.stage"),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
            "zero.deepspeed.zero_optimization.offload_optimizer=",
            "zero.offload",
        ),
        (
            {"zero_optimization": {"overlap_comm": True}},
            "zero.deepspeed.zero_optimization.overlap_comm=true",
            "stage=2",
        ),
        ({"zero_optimization": 3}, "zero.deepspeed.zero_optimization=3", "mapping"),
        ({"zero_optimisation": {}}, "zero.deepspeed.zero_optimisation=", "nearest: zero_optimization"),
    ],
)
def test_keys_that_are_not_passed_on(settings, key, said):
    (message,) = messages(job_with(zero__backend="deepspeed", zero__stage=1, zero__deepspeed=settings))
    assert message.startswith(key) and said in message, message


def test_its_keys_need_it():
    settings = {"zero_optimization": {"reduce_bucket_size": 1000}}
    (message,) = messages(job_with(zero__stage=1, zero__deepspeed=settings))
    assert message.startswith("zero.deepspeed=") and "needs zero.backend=deepspeed" in message
    assert messages(job_with(zero__backend="deepspeed", zero__stage=1, zero__deepspeed=settings)) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"reduce_bucket_sise": 5},
            "reduce_bucket_sise=5: DeepSpeed refuses it: Extra",
        ),
        ({"reduce_bucket_size": "many"}, "reduce_bucket_size=many: DeepSpeed refuses"),
    ],
)
def test_what_deepspeed_itself_refuses(settings, said):
    with pytest.raises(ConfigError, match=re.escape(f"zero.deepspeed.zero_optimization.{said}")):
        check_settings({"zero_optimization": settings}, device="cpu")
