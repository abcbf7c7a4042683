"""Ctrl-C, SIGTERM and SAVE_NOW while a run trains: what is saved, what is said, and that the run goes on from it."""

import contextlib
import os
import random
import shlex
import signal
import time

import pytest
from processes import children, running, wait_for

MESH = ["parallel.tp=2", "parallel.pp=2"]
LONG = ["train.steps=5000", "train.eval_every=0", "checkpoint.every=0", "checkpoint.final=false"]


@pytest.fixture
def train(shell, small):
    """Start a run in a session of its own; ends what a failed test leaves."""
    started = []

    def start(*args, **options):
        process = shell.start("train", *small, *args, start_new_session=True, **options)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def at_step(shell):
    """Wait until a run has done so many steps; its workers' ids."""

    def wait(process, number, run="run"):
        metrics = shell.folder / "runs" / run / "metrics.jsonl"
        wait_for(lambda: process.poll() is not None or (metrics.exists() and metrics.read_text().count("\n") >= number))
        assert process.poll() is None, process.communicate()
        return children(process.pid)

    return wait


def saved_steps(shell, run="run"):
    return sorted(path.name for path in (shell.folder / "runs" / run / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("number", "to_all", "code"),
    [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 143), (signal.SIGTERM, True, 143)],
    ids=["Ctrl-C", "SIGTERM to the parent", "SIGTERM to all"],
)
def test_a_signal_saves_the_running_step(number, to_all, code, train, at_step, shell):
    process = train(*MESH, *LONG, "run.name=run")
    pids = at_step(process, 3)
    assert len(pids) == 4
    os.killpg(process.pid, number) if to_all else process.send_signal(number)
    output, error = process.communicate(timeout=60)
    step = len(shell.losses("run"))
    assert process.returncode == code
    assert saved_steps(shell) == ["latest", f"step-{step:08}"]
    lines = error.splitlines()
    assert lines[:2] == [f"interrupted by {number.name}: saved step {step}", "run folder: runs/run"]
    assert len(lines) == 3 and lines[2].startswith("resume: gooseslo train ") and "run.dir=runs/run" in lines[2]
    assert f"step {step}: saved" in output
    assert not any(running(pid) for pid in pids) and shell.left_behind == []
    assert not list((shell.folder / "runs" / "run").glob(".launch*"))


def test_the_command_that_is_printed_goes_on(train, at_step, shell):
    options = ["train.steps=400", "lr_schedule=constant", "checkpoint.every=0", "train.eval_every=0"]
    process = train("parallel.tp=2", *options, "run.name=run", "checkpoint.resume=never")
    at_step(process, 2)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    step = len(shell.losses("run"))
    resume = shlex.split(error.splitlines()[-1])[1:]
    assert resume[:2] == ["gooseslo", "train"] and "checkpoint.resume=never" not in resume
    shell(*resume[1:], f"train.stop_after={step + 2}")
    assert [record["step"] for record in shell.metrics("run", "train")] == [*range(1, step + 3)]


def test_a_signal_before_training_ends_at_once_and_leaves_the_earlier_checkpoint(train, at_step, shell):
    first = train("parallel.tp=2", *LONG, "run.name=run")
    at_step(first, 1)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    before, steps = saved_steps(shell), len(shell.losses("run"))
    again = train("parallel.tp=2", *LONG, "run.name=run")
    wait_for(lambda: again.poll() is not None or len(children(again.pid)) == 2)
    os.killpg(again.pid, signal.SIGINT)
    _, error = again.communicate(timeout=60)
    assert again.returncode == 130 and saved_steps(shell) == before and len(shell.losses("run")) == steps
    assert error.splitlines()[:2] == [
        "interrupted by SIGINT",
        f"run folder: runs/run (newest checkpoint: step {steps})",
    ]


def test_a_save_that_fails_is_told_with_the_exit_code_of_the_signal(train, at_step, shell):
    process = train(*LONG, "run.name=run")
    at_step(process, 1)
    checkpoints = shell.folder / "runs" / "run" / "checkpoints"
    checkpoints.rmdir()
    checkpoints.write_text("in the way")
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in error
    first, folder, resume = error.splitlines()
    assert first.startswith("interrupted by SIGINT: not saved: rank 0: SaveError: ")
    assert folder == "run folder: runs/run (no checkpoint yet)" and resume.startswith("resume: ")


def test_a_file_asks_for_a_save_and_the_run_goes_on(train, at_step, shell):
    process = train("parallel.dp=2", *LONG, "run.name=run")
    at_step(process, 2)
    file = shell.folder / "runs" / "run" / "SAVE_NOW"
    file.touch()
    wait_for(lambda: not file.exists())
    names = saved_steps(shell)
    assert len(names) == 2 and names[0] == "latest"
    at_step(process, int(names[1].removeprefix("step-")) + 2)
    assert saved_steps(shell) == names


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_run_that_is_interrupted_twenty_times_is_the_run_that_is_not(train, shell, small):
    """At random moments, before training and in saves too: what is there is whole, and the losses are the same.

    A run that comes to its end before the signal does is followed by another.
    """
    options = [*MESH, "train.steps=150", "train.eval_every=50", "checkpoint.every=25"]
    shell("train", *small, *options, "run.name=whole", timeout=300)
    dice = random.Random(0)
    interrupted, run = 0, 0
    while interrupted < 20:
        process = train(*options, f"run.name=cut-{run}")
        wait_for(lambda process=process: process.poll() is not None or len(children(process.pid)) == 4)
        pids = children(process.pid)
        time.sleep(dice.uniform(0, 4))
        number = dice.choice([signal.SIGINT, signal.SIGTERM])
        with contextlib.suppress(ProcessLookupError):  # it had come to its end
            os.killpg(process.pid, number) if dice.random() < 0.5 else process.send_signal(number)
        _, error = process.communicate(timeout=100)
        assert "Traceback" not in error
        assert not any(running(pid) for pid in pids) and shell.left_behind == []
        if process.returncode == 0:
            run += 1
            continue
        assert process.returncode == 128 + number, error
        assert error.startswith(f"interrupted by {number.name}")
        interrupted += 1
    shell("train", *small, *options, f"run.name=cut-{run}", timeout=300)
    whole = {record["step"]: record["loss"] for record in shell.metrics("whole", "train")}
    for number in range(run + 1):
        records = shell.metrics(f"cut-{number}", "train")
        assert all(record["loss"] == whole[record["step"]] for record in records)
        assert {record["step"] for record in records} == set(whole) == set(range(1, 151))
