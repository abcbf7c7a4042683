"""An observer that fails is warned of once and dropped; the metrics file alone may end a run."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from gooseslo.engine.metrics import read_metrics
from gooseslo.engine.observers import Guarded, build_observers
from gooseslo.schema.compose import compose_train


class Guest:
    """Fails at the given calls."""

    def __init__(self, fails=()):
        self.fails, self.calls = fails, []

    def __call__(self, record):
        self.calls.append(record["step"])
        if record["step"] in self.fails:
            raise OSError("No space left\non device")

    def close(self):
        self.calls.append("closed")
        if "closed" in self.fails:
            raise OSError("gone")


def record(step):
    return {"kind": "train", "step": step, "loss": 1.0}


def test_a_failing_guest_is_warned_of_once_and_dropped():
    guest, said = Guest(fails={2, 3, "closed"}), []
    guarded = Guarded("wandb", lambda: guest, warn=said.append)
    for step in range(1, 5):
        guarded(record(step))
    guarded.close()
    assert guest.calls == [1, 2, "closed"]
    assert len(said) == 1 and said[0].startswith("wandb failed") and "OSError: No space left on device" in said[0]


@pytest.mark.parametrize("fails", [(), ("closed",)])
def test_a_guest_is_closed_once(fails):
    guest, said = Guest(fails=fails), []
    guarded = Guarded("wandb", lambda: guest, warn=said.append)
    guarded.close()
    guarded.close()
    assert guest.calls == ["closed"] and len(said) == len(fails)


def test_a_guest_that_does_not_come_is_warned_of():
    def absent():
        raise ImportError("No module named 'wandb'")

    said = []
    guarded = Guarded("wandb", absent, warn=said.append)
    guarded(record(1))
    guarded.close()
    assert len(said) == 1 and "No module named 'wandb'" in said[0]


def test_a_stop_from_outside_passes():
    def interrupted(record):
        raise KeyboardInterrupt

    guarded = Guarded("display", lambda: interrupted, warn=lambda text: None)
    with pytest.raises(KeyboardInterrupt):
        guarded(record(1))


class BrokenPipe(io.StringIO):
    def write(self, text):
        raise BrokenPipeError("Broken pipe")


def observers(tmp_path, console, *args, rank=0):
    job = compose_train(["train.steps=3", *args])
    return build_observers(SimpleNamespace(rank=rank, run_dir=tmp_path, console=console), job, first_step=1)


def test_only_rank_0_has_observers(tmp_path):
    assert observers(tmp_path, None, "logging.tensorboard=true", "logging.wandb.mode=offline", rank=1) == []
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_has_gone_does_not_end_the_run(tmp_path, capsys):
    made = observers(tmp_path, BrokenPipe())
    for step in (1, 2):
        for observer in made:
            observer({"kind": "eval", "step": step, "split": "valid", "loss": 1.0, "perplexity": 2.7, "samples": 1})
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2]
    assert capsys.readouterr().err.count("the display failed") == 1


def test_a_tracker_that_cannot_write_is_said_on_screen_and_in_the_log(tmp_path, capsys):
    (tmp_path / "tensorboard").write_text("in the way")
    console = io.StringIO()
    made = observers(tmp_path, console, "logging.tensorboard=true")
    for observer in made:
        observer({"kind": "eval", "step": 1, "split": "valid", "loss": 1.0, "perplexity": 2.7, "samples": 1})
    for text in (console.getvalue(), capsys.readouterr().err):
        assert text.count("warning: TensorBoard failed") == 1
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_metrics_that_cannot_be_written_are_a_failure(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError):
        for observer in observers(tmp_path, None):
            observer({"kind": "eval", "step": 1, "split": "valid", "loss": 1.0, "perplexity": 2.7, "samples": 1})
