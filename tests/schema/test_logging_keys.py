"""The keys of logging: nested ones too are typed, bounded, listed by --help, and read back from a saved file."""

import pytest

from gooseslo.errors import ConfigError
from gooseslo.schema.compose import compose_train
from gooseslo.schema.dump import dump_yaml
from gooseslo.schema.groups import LoggingConfig, TrainJob, WandbConfig
from gooseslo.schema.help import job_help


def test_defaults_send_nothing():
    assert compose_train([]).logging == LoggingConfig(progress=True, tensorboard=False, wandb=WandbConfig(mode="off"))


def test_a_saved_config_has_the_same_mode(tmp_path):
    """A bare off would be false in YAML."""
    for mode in ("off", "offline", "online"):
        job = compose_train([f"logging.wandb.mode={mode}", "logging.wandb.project=no"])
        (tmp_path / "job.yaml").write_text(dump_yaml(job))
        assert compose_train([], config_file=tmp_path / "job.yaml").logging == job.logging


@pytest.mark.parametrize(
    "argument, words",
    [
        ("logging.wandb.mode=ofline", "nearest: offline"),
        ("logging.wandb.project=", "must be 1 to 128 characters"),
        ("logging.wandb.project=a/b", "must be 1 to 128 characters"),
        ("logging.wandb.mod=off", "nearest: logging.wandb.mode"),
        ("logging.wandb=offline", "is not a key but a section"),
        ("logging.tensorboard=1", "is not a boolean"),
    ],
)
def test_what_is_wrong_is_said(argument, words):
    with pytest.raises(ConfigError) as caught:
        compose_train([argument])
    assert str(caught.value).startswith(argument.partition("=")[0]) and words in str(caught.value)


def test_help_lists_the_nested_keys_once():
    text = job_help(TrainJob)
    for key in ("logging.wandb.mode", "logging.wandb.project", "logging.tensorboard", "optimizer.betas", "device"):
        assert text.count(f"  {key} ") == 1
    assert "[text, off] off, offline" in text
