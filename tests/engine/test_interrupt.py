"""What a rank makes of signals, without a process to send them."""

import dataclasses
import math
import signal
import time

import pytest

from gooseslo.engine import adopted_rank, interrupt, launcher
from gooseslo.engine.adopted_rank import AdoptedDuties
from gooseslo.engine.interrupt import SignalWatch
from gooseslo.engine.place import Place
from gooseslo.engine.worker import Duties, Worker

PLACE = Place(rank=0, local_rank=0, world_size=2, local_size=2, host="localhost", port=1, starter="torchrun")


@pytest.fixture
def clock(monkeypatch):
    """A monotonic clock that stands still."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(interrupt.time, "monotonic", lambda: Clock.now)
    return Clock


def test_a_signal_counts_whatever_its_handling_comes_to(capsys):
    def fail(number, again):
        raise OSError("the run folder is gone")

    watch = SignalWatch(fail)
    watch.take(signal.SIGTERM)
    assert watch.number == signal.SIGTERM and "the run folder is gone" in capsys.readouterr().err


@pytest.mark.parametrize("forwarded", [False, True])
def test_a_signal_that_the_launcher_hands_on_is_no_second_one(forwarded, clock):
    duties = AdoptedDuties(dataclasses.replace(PLACE, ends_with_parent=forwarded))
    seen = []
    duties.watch._on_signal = lambda number, again: seen.append(again)
    for clock.now in (100.0, 101.5, 104.0):
        duties.watch.take(signal.SIGINT)
    assert seen == [False, not forwarded, True]


def test_what_is_left_after_a_signal(clock, tmp_path):
    duties = Duties(0, tmp_path, shutdown_seconds=60)
    worker = Worker(rank=0, local_rank=0, world_size=1, run_dir=tmp_path, device=None, console=None, duties=duties)
    assert worker.seconds_left() == math.inf
    duties.watch.take(signal.SIGTERM)
    clock.now += 25
    assert worker.seconds_left() == 35


def test_a_signal_passes_through_code_that_logs_every_exception(tmp_path, monkeypatch):
    """As torch's agent does while it waits for other agents."""
    spec = launcher.LaunchSpec(
        num_workers=1, run_dir=tmp_path, device="cpu", timeout_seconds=1, shutdown_seconds=1, coordinates=("tp=0",)
    )

    def agent(*config):
        def run(*args):
            try:
                signal.raise_signal(signal.SIGTERM)
                time.sleep(5)
            except Exception:
                pytest.fail("the agent took it for an error")

        return run

    monkeypatch.setattr(launcher, "elastic_launch", agent)
    with pytest.raises(interrupt.Interrupted, match="SIGTERM"):
        launcher.launch(spec, print)


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_says_that_the_time_to_save_is_over(rank, capfd, monkeypatch):
    """As where a rank of another machine is gone: nobody here can know, and the launcher sends a signal."""

    class LeftError(Exception):
        pass

    def leave(code):
        raise LeftError(code)

    monkeypatch.setattr(adopted_rank.os, "_exit", leave)
    monkeypatch.setattr(adopted_rank.faulthandler, "dump_traceback", lambda **options: None)
    duties = AdoptedDuties(dataclasses.replace(PLACE, rank=rank))
    duties.shutdown_seconds = 60
    with pytest.raises(LeftError, match="143"):
        duties._give_up(signal.SIGTERM)
    assert ("within launcher.shutdown_seconds=60" in capfd.readouterr().err) == (rank == 0)
