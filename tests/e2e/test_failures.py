"""A worker that dies ends the run at once: exit code 1, its rank and signal named, nothing left behind."""

import os
import signal

import pytest
from processes import children, running, wait_for


@pytest.fixture
def run(shell, small):
    """A long run on four workers, at its third step; its process and its workers' ids."""
    sizes = ["parallel.tp=2", "parallel.pp=2", "train.steps=5000", "train.eval_every=0", "checkpoint.every=0"]
    process = shell.start("train", *small, *sizes, "run.name=run")
    metrics = shell.folder / "runs" / "run" / "metrics.jsonl"
    wait_for(lambda: process.poll() is not None or (metrics.exists() and metrics.read_text().count("\n") >= 3))
    assert process.poll() is None, process.communicate()
    pids = children(process.pid)
    assert len(pids) == 4
    yield shell, process, pids
    for pid in (process.pid, *pids):
        if running(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_killed_worker_is_named(run):
    shell, process, pids = run
    os.kill(pids[2], signal.SIGKILL)
    _, error = process.communicate(timeout=10)
    assert process.returncode == 1
    last = error.strip().splitlines()[-1]
    assert "rank 2" in last and "SIGKILL" in last and "tp=0 pp=1 dp=0" in last
    assert not any(running(pid) for pid in pids)
    assert shell.left_behind == []
    assert not list((shell.folder / "runs" / "run").glob(".launch*"))
    assert not list((shell.folder / "runs" / "run" / "checkpoints").iterdir()), "a rank is missing: nothing to save"


def test_workers_die_with_their_parent(run):
    _, process, pids = run
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=10)
    wait_for(lambda: not any(running(pid) for pid in pids), seconds=10)
