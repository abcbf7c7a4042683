"""What is said at the end of a run, and that its commands can be pasted into a shell."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from gooseslo.cli import read_flags
from gooseslo.engine.display import summary as module
from gooseslo.engine.display.summary import merge_command, resume_command, summary
from gooseslo.engine.metrics import eval_record
from gooseslo.schema.compose import compose_merge, compose_train
from gooseslo.schema.dump import dump_yaml

NAMES = ["run", "my run; $(honk)", "[a]", "It's", "a=b", "null"]


def train(step, loss):
    return {"kind": "train", "step": step, "loss": loss, "consumed_tokens": 1000 * step, "tokens_per_second": 12345.6}


def evaluation(step, loss):
    return eval_record(step=step, split="valid", loss=loss, samples=8)


@pytest.fixture
def complete(monkeypatch):
    """Step folders are taken as they are named in `latest`."""

    def latest(run_dir):
        named = run_dir / "checkpoints" / "latest"
        return named.parent / named.read_text() if named.exists() else None

    monkeypatch.setattr(module, "find_latest", latest)


def write_run(folder, records):
    folder.mkdir(exist_ok=True)
    lines = [
        json.dumps({key: None if value != value else value for key, value in record.items()}) for record in records
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))


def save(folder, step):
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    (folder / "checkpoints" / "latest").write_text(f"step-{step:08d}")


def test_it_tells_what_the_run_came_to(tmp_path, complete):
    run = tmp_path / "run"
    write_run(
        run, [train(1, 9.0), evaluation(1, 7.5), train(2, 8.0), evaluation(2, 7.0), train(3, 7.5), evaluation(3, 7.25)]
    )
    lines = dict(line.split(maxsplit=1) for line in summary(run, resume="gooseslo train", seconds=75.0).splitlines())
    assert lines == {
        "run": str(run),
        "steps": "3, 3,000 tokens",
        "time": "1m15s, 12,346 tokens/s",
        "loss": "9.0000 at step 1, 7.5000 at step 3",
        "best": "step 2: valid loss 7.0000, perplexity 1,096.63",
        "checkpoint": "nothing was saved: this run cannot be gone on with",
    }
    save(run, 3)
    lines = summary(run, resume="gooseslo train", seconds=75.0).splitlines()
    assert lines[-3:] == [
        f"checkpoint  {run}/checkpoints/step-00000003",
        "resume      gooseslo train",
        f"merge       gooseslo merge-checkpoint input={run} output={run}/merged",
    ]
    over = summary(run, resume=None, seconds=75.0)
    assert "resume" not in over and "merge" in over, "a run at its end is not gone on with"


def test_numbers_that_are_not_finite_are_said_so(tmp_path, complete):
    write_run(
        tmp_path / "run", [train(1, 9.0), train(2, float("nan")), evaluation(2, float("nan")), evaluation(3, 7.0)]
    )
    text = summary(tmp_path / "run", resume="r", seconds=1.0)
    assert "loss        9.0000 at step 1, not finite at step 2\n" in text and "best        step 3" in text


def test_a_run_without_a_step_has_nothing_to_tell(tmp_path, complete):
    lines = summary(tmp_path, resume="r", seconds=1.0).splitlines()
    assert [line.split()[0] for line in lines] == ["run", "checkpoint"] and "nothing was saved" in lines[1]


@pytest.mark.parametrize("name", NAMES)
def test_the_merge_command_names_the_run_and_a_new_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Path(name)
    save(run, 2)
    for expected in (f"{name}/merged", f"{name}/merged-step-00000002"):
        command = shlex.split(merge_command(run, run / "checkpoints" / "step-00000002"))
        assert command[:2] == ["gooseslo", "merge-checkpoint"]
        job = compose_merge(command[2:])
        assert (job.input, job.output) == (name, expected)
        (run / "merged").mkdir(exist_ok=True)


@pytest.mark.parametrize("name", NAMES)
def test_the_resume_command_gives_the_same_job_in_the_same_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args = [f"run.dir='{name}'" if name == "null" else "+run.name=x", "train.steps=7", "model.config.n_layer=2"]
    args += ["data=text", "data.train=it's a; file.txt", "optimizer.betas=[0.9, 0.99]"]
    job = compose_train(args)
    command = shlex.split(resume_command(job, Path(name), args))
    assert command[:2] == ["gooseslo", "train"]
    again = compose_train(command[2:])
    assert again.run.dir == name and again.run.name is None
    for group in ("train", "model", "data", "optimizer", "checkpoint"):
        assert getattr(again, group) == getattr(job, group)


def test_a_launcher_that_nobody_knows_is_left_to_the_user():
    job = compose_train(["run.name=x"])
    line = resume_command(job, Path("runs/x"), ["parallel.tp=2", "run.name=x"], command=())
    assert line == "gooseslo train parallel.tp=2 run.dir=runs/x  # the ranks started as before"


def test_the_resume_command_goes_to_the_end_whatever_ended_this_start(tmp_path, monkeypatch):
    """`stop_after` and `never` are of this start alone, also where a file says them."""
    monkeypatch.chdir(tmp_path)
    args = ["train.steps=19", "train.stop_after=3", "checkpoint.resume=never", "run.name=x"]
    Path("job.yaml").write_text(dump_yaml(compose_train(args)))
    for given in (args, ["--config-file", "job.yaml", "run.name=y"]):
        flags = read_flags(given)
        job = compose_train(flags.overrides, config_file=flags.config_file)
        assert job.train.stop_after == 3
        again = read_flags(shlex.split(resume_command(job, Path("runs/y"), given))[2:])
        resumed = compose_train(again.overrides, config_file=again.config_file)
        assert resumed.train.stop_after is None and resumed.checkpoint.resume == "auto"
        assert resumed.run.dir == "runs/y" and resumed.run.name is None and resumed.train.steps == 19
