"""Runs with trackers from the command line, and the commands that a run ends with, pasted into a shell."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

sys.path.append(str(Path(__file__).parents[1] / "engine"))
from wandb_files import read_offline

TRACKED = ["logging.tensorboard=true", "logging.wandb.mode=offline", "logging.wandb.project=ponds"]
RUN = ["train.steps=4", "parallel.pp=2", "train.eval_every=2", "checkpoint.every=2", "run.name=It's a run; $(honk)"]


@pytest.fixture
def paste(shell):
    """Runs a line as a shell does, with `gooseslo` on the path and no account of wandb's."""
    command = shell.folder / "bin" / "gooseslo"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gooseslo "$@"\n')
    command.chmod(0o755)
    environment = {name: value for name, value in shell.environment.items() if not name.startswith("WANDB")}
    environment |= {"PATH": f"{command.parent}:{os.environ['PATH']}", "HOME": str(shell.folder), "NETRC": "/none"}

    def run(line, **further):
        options = {"cwd": shell.folder, "env": {**environment, **further}, "capture_output": True, "text": True}
        done = subprocess.run(["sh", "-c", line], timeout=110, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def quoted(*args):
    return shlex.join(["gooseslo", "train", *args])


def row(output, label):
    return re.search(rf"^{label} +(.*)$", output, re.MULTILINE)[1]


def wandb_services(folder):
    """Of wandb's service processes, those whose working directory is this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b"wandb-core" in (path / "cmdline").read_bytes() and (path / "cwd").resolve() == folder:
                found.append(int(path.name))
        except OSError:
            continue
    return found


def assert_trackers_agree(shell, name, *, num_starts):
    """TensorBoard and the files of wandb hold what metrics.jsonl holds, and wandb the configuration."""
    run = shell.folder / "runs" / name
    train, evaluations = shell.metrics(name, "train"), shell.metrics(name, "eval")
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    for key in ("loss", "lr", "tokens_per_second"):
        shown = [(event.step, event.value) for event in events.Scalars(f"train/{key}")]
        assert shown == [(record["step"], pytest.approx(record[key], rel=1e-6)) for record in train]
    assert [event.step for event in events.Scalars("valid/loss")] == [record["step"] for record in evaluations]

    files = sorted(run.glob("wandb/offline-run-*/*.wandb"))
    run_id = (run / "wandb" / "run-id").read_text().strip()
    assert [path.name for path in files] == [f"run-{run_id}.wandb"] * num_starts
    history = []
    for path in files:
        about, config, rows, exit_code = read_offline(path)
        assert about.project == "ponds" and about.display_name == name and exit_code == 0
        history += rows
    assert {key: value for key, value in config.items() if key != "_wandb"} == yaml.safe_load(
        (run / "config.yaml").read_text()
    )
    assert [(row["step"], row["train/loss"]) for row in history if "train/loss" in row] == [
        (record["step"], record["loss"]) for record in train
    ]
    assert [row["valid/loss"] for row in history if "valid/loss" in row] == [record["loss"] for record in evaluations]


def test_both_trackers_hold_the_run_and_without_an_account_there_is_one_warning(shell, small, paste):
    """Online was asked for: there is no key, so wandb is offline, and the run goes on."""
    trackers = ["logging.tensorboard=true", "logging.wandb.mode=online", "logging.wandb.project=ponds"]
    output = paste(quoted(*small, *trackers, "train.steps=3", "parallel.pp=2", "run.name=run"))
    assert output.count("warning: ") == 1 and "warning: wandb is not reached" in output
    assert_trackers_agree(shell, "run", num_starts=1)
    assert wandb_services(shell.folder) == [] and shell.left_behind == []


@pytest.mark.slow  # five starts
@pytest.mark.timeout(240)
def test_the_commands_at_the_end_work_when_pasted_and_the_trackers_go_on(shell, small, paste):
    first = paste(quoted(*small, *TRACKED, *RUN, "train.stop_after=2"))
    assert row(first, "steps").startswith("2, ") and row(first, "checkpoint").endswith("step-00000002")
    second = paste(row(first, "resume"))
    run = shell.folder / "runs" / RUN[-1].partition("=")[2]
    assert row(second, "run") == str(run.relative_to(shell.folder)) and row(second, "steps").startswith("4, ")
    train, evaluations = shell.metrics(run.name, "train"), shell.metrics(run.name, "eval")
    assert row(second, "loss") == f"{train[0]['loss']:.4f} at step 1, {train[-1]['loss']:.4f} at step 4"
    best = min(evaluations, key=lambda record: record["loss"])
    assert row(second, "best").startswith(f"step {best['step']}: valid loss {best['loss']:.4f}, ")
    paste(row(second, "merge"))
    assert (run / "merged" / "model.safetensors").is_file()
    assert "finished already" in paste(row(first, "resume")) and not re.search(r"^resume ", second, re.MULTILINE)

    assert_trackers_agree(shell, run.name, num_starts=2)
    assert wandb_services(shell.folder) == [] and shell.left_behind == []


@pytest.mark.slow  # waits until wandb gives up
@pytest.mark.timeout(240)
@pytest.mark.parametrize("answers", [False, True])
def test_a_server_that_is_not_reached_costs_no_step_any_time(answers, shell, small, paste):
    """The steps are as quick as without wandb while it tries to connect: refused at once, or never answered."""
    sizes = [*small, "train.steps=60", "train.eval_batches=0"]
    paste(quoted(*sizes, "run.name=off"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        if not answers:
            server.close()
        began = time.monotonic()
        key = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": address}
        output = paste(quoted(*sizes, "run.name=on", "logging.wandb.mode=online"), **key)
        assert time.monotonic() - began < 100
    assert output.count("warning: ") == 1 and "warning: wandb is not reached" in output

    def typical(run):
        return sorted(record["step_seconds"] for record in shell.metrics(run, "train")[1:])[30]

    assert typical("on") < 2 * typical("off") + 0.02
    assert max(record["step_seconds"] for record in shell.metrics("on", "train")[1:]) < 3
    assert wandb_services(shell.folder) == []


@pytest.mark.slow
def test_nothing_of_wandb_outlives_a_run_that_was_killed(shell, small):
    process = shell.start("train", *small, "train.steps=100000", "run.name=run", "logging.wandb.mode=offline")
    try:
        deadline = time.monotonic() + 60
        while not wandb_services(shell.folder):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    deadline = time.monotonic() + 20
    while wandb_services(shell.folder):
        assert time.monotonic() < deadline
        time.sleep(0.1)
