"""TensorBoard and wandb: what they hold afterwards, and that neither can stop or slow the training."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb_files import read_offline

from gooseslo.engine.metrics import eval_record, save_record, warning_record
from gooseslo.engine.trackers import wandb_run
from gooseslo.engine.trackers.scalars import scalars
from gooseslo.engine.trackers.tensorboard import TensorBoard
from gooseslo.engine.trackers.wandb_run import WandbRun


def train(step, loss=5.0):
    return {"kind": "train", "step": step, "loss": loss, "mfu": None, "skipped": False, "stage_seconds": [0.25, 0.5]}


def evaluation(step):
    return eval_record(step=step, split="valid", loss=4.0, samples=8)


def services():
    """wandb's service processes that this test process has started and that still live."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if words[0].endswith(b"/wandb-core") and str(os.getpid()).encode() in words:
                found.append(int(path.parent.name))
    return found


def offline_files(run_dir):
    return sorted(run_dir.glob("wandb/offline-run-*/*.wandb"))


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    """A run folder, away from whatever account or settings the machine has."""
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def start(run_dir, mode="offline", config=None):
    notes = []
    return WandbRun(run_dir, mode=mode, project="ponds", config=config or {}, tell=notes.append), notes


def test_the_numbers_of_a_record():
    assert scalars(train(3)) == {
        "train/loss": 5.0, "train/skipped": 0.0, "train/stage_seconds/0": 0.25, "train/stage_seconds/1": 0.5,
    }  # fmt: skip
    assert scalars(evaluation(3)) == {"valid/loss": 4.0, "valid/perplexity": math.exp(4), "valid/samples": 8.0}
    accuracy = eval_record(step=3, split="valid", loss=4.0, samples=8, accuracy=0.5)
    assert scalars(accuracy) == {"valid/loss": 4.0, "valid/accuracy": 0.5, "valid/samples": 8.0}
    assert scalars(warning_record("honk")) == {} == scalars(save_record(step=1, path="x"))


# TensorBoard


def test_tensorboard_holds_the_numbers_and_goes_on_after_a_resume(tmp_path):
    """Steps 3 and 4 are done again from the checkpoint at 2: the second account of them counts."""
    for first_step, steps in ((1, (1, 2, 3, 4)), (3, (3, 4, 5))):
        tracker = TensorBoard(tmp_path, first_step=first_step)
        for step in steps:
            tracker(train(step, loss=10.0 * first_step + step))
            tracker(evaluation(step))
            tracker(save_record(step=step, path=tmp_path))
        tracker.close()
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    losses = [(event.step, event.value) for event in found.Scalars("train/loss")]
    assert losses == [(1, 11.0), (2, 12.0), (3, 33.0), (4, 34.0), (5, 35.0)]
    assert [event.step for event in found.Scalars("valid/loss")] == [1, 2, 3, 4, 5]
    assert "train/mfu" not in found.Tags()["scalars"]


# wandb


def test_wandb_offline_holds_the_numbers_and_one_run_over_two_starts(run_dir):
    config = {"model": {"name": "tiny", "config": {"n_layer": 2}}, "optimizer": {"betas": [0.9, 0.95]}, "device": None}
    for steps in ((1, 2), (2, 3)):
        tracker, notes = start(run_dir, config=config)
        for step in steps:
            tracker(train(step, loss=10.0 + step))
            tracker(evaluation(step))
        tracker(save_record(step=2, path=run_dir))
        while not services():
            time.sleep(0.02)
        tracker.close()
        assert services() == []
        assert notes == []
        time.sleep(1.1)  # wandb names its folders by the second
    run_id = (run_dir / "wandb" / "run-id").read_text().strip()
    files = offline_files(run_dir)
    assert len(files) == 2 and run_id
    for path, steps in zip(files, ((1, 2), (2, 3)), strict=True):
        run, found, history, exit_code = read_offline(path)
        assert (run.run_id, run.project, run.display_name, exit_code) == (run_id, "ponds", "run", 0)
        assert {key: value for key, value in found.items() if key != "_wandb"} == config
        losses = [(row["step"], row["train/loss"]) for row in history if "train/loss" in row]
        assert losses == [(step, 10.0 + step) for step in steps]
        assert [row["valid/loss"] for row in history if "valid/loss" in row] == [4.0, 4.0]


@pytest.mark.parametrize("why", ["a failure", "a signal"])
def test_its_end_takes_no_longer_than_the_process_has(why, run_dir, monkeypatch):
    """Other ranks wait where this one failed, and the process is killed when the time to save is over."""
    monkeypatch.setattr(WandbRun, "_live", lambda self, mode: threading.Event().wait(60))
    left = 2.2 if why == "a signal" else math.inf
    monkeypatch.setattr(wandb_run, "FAILED_SECONDS", 0.2)
    settings = {"mode": "online", "project": "ponds", "config": {}, "tell": print}
    tracker = WandbRun(run_dir, seconds_left=lambda: left, **settings)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        if why == "a signal":
            tracker.close()
        try:
            raise FloatingPointError
        except FloatingPointError:
            tracker.close()
    assert time.monotonic() - began < 10, "of 45 s that it has else"


def test_a_run_that_fails_is_a_failed_run_at_wandb(run_dir, monkeypatch):
    monkeypatch.setattr(wandb_run, "FAILED_SECONDS", 30)
    tracker, _ = start(run_dir)
    tracker(train(1))
    try:
        raise FloatingPointError
    except FloatingPointError:
        tracker.close()
    assert read_offline(offline_files(run_dir)[0])[3] == 1


@pytest.mark.parametrize("fault", ["no key", pytest.param("refused", marks=pytest.mark.slow), "silent"])
def test_a_server_that_is_not_reached_neither_stops_nor_slows_the_run(fault, run_dir, monkeypatch):
    """One note, the records offline, and no record waits: neither for the start nor for anything after it."""
    monkeypatch.setattr(wandb_run, "CONNECT_SECONDS", 1.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        if fault == "refused":
            silent.close()
        if fault != "no key":
            monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
            monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        began = time.monotonic()
        tracker, notes = start(run_dir, mode="online")
        slowest = time.monotonic() - began
        for step in range(1, 101):
            before = time.monotonic()
            tracker(train(step))
            slowest = max(slowest, time.monotonic() - before)
            time.sleep(0.01)
        tracker.close()
        assert slowest < 0.5 and time.monotonic() - began < 25
    assert len(notes) == 1 and "wandb is not reached" in notes[0] and "\n" not in notes[0]
    (path,) = offline_files(run_dir)
    assert [row["step"] for row in read_offline(path)[2]] == list(range(1, 101))
    assert services() == []


def running_service(run_dir):
    """A tracker whose wandb is up, and the process id of its service."""
    tracker, _ = start(run_dir)
    while not offline_files(run_dir):
        time.sleep(0.05)
    time.sleep(1.0)
    (service,) = services()
    return tracker, service


def test_a_killed_service_of_wandb_is_an_error_at_a_later_record(run_dir):
    tracker, service = running_service(run_dir)
    os.kill(service, signal.SIGKILL)
    with pytest.raises(ConnectionResetError):
        for step in range(1, 1000):
            tracker(train(step))
            time.sleep(0.01)
    before = time.monotonic()
    tracker.close()
    assert time.monotonic() - before < 0.5


FROZEN = """
import os, signal, time
from test_trackers import running_service, train, wandb_run
for name in ("CONNECT_SECONDS", "FINISH_SECONDS", "_GRACE_SECONDS"):
    setattr(wandb_run, name, 0.5)
wandb_run._MAX_WAITING = 1000
from pathlib import Path
tracker, service = running_service(Path("run"))
os.kill(service, signal.SIGSTOP)
slowest = 0.0
try:
    for step in range(10**5):
        before = time.monotonic()
        tracker({**train(step), "stage_seconds": [0.5] * 100})
        slowest = max(slowest, time.monotonic() - before)
except TimeoutError as error:
    print(error)
before = time.monotonic()
tracker.close()
print(slowest < 0.5, time.monotonic() - before < 0.5)
os.kill(service, signal.SIGKILL)
"""


@pytest.mark.slow  # imports torch once more
def test_a_frozen_service_of_wandb_takes_no_time_from_the_training(run_dir):
    """In a process of its own: its thread hangs for good."""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", FROZEN],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=run_dir.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == ["1000 records wait to be taken", "True True"], done.stderr


@pytest.mark.slow  # imports all of the engine once more
def test_neither_is_imported_where_it_is_off():
    code = "import gooseslo.engine.run, sys; print([name for name in ('wandb', 'tensorboard') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
