"""What a run came to, from its own files, and the commands that lead on from it."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from gooseslo.engine.checkpoint.folders import find_latest
from gooseslo.engine.display import wording
from gooseslo.engine.display.wording import Record
from gooseslo.engine.metrics import read_metrics
from gooseslo.engine.run_folder import METRICS
from gooseslo.schema.groups import TrainJob
from gooseslo.schema.overrides import Assignment, read_argument
from gooseslo.schema.quoting import as_argument

_LABEL_WIDTH = 11
_OF_THIS_START = ("run.name", "run.dir", "train.stop_after", "checkpoint.resume")
"""Keys that say where a start of the run begins, ends and lies: the next one differs in them."""


def summary(run_dir: Path, *, resume: str | None, seconds: float) -> str:
    """The run's numbers so far, its newest checkpoint, and the commands to go on with it and to merge it.

    `resume` is the command that continues the run, None for one at its end; `seconds` is what this start of it took.
    """
    records = read_metrics(run_dir / METRICS)
    steps = [record for record in records if record["kind"] == "train"]
    rows = [("run", str(run_dir))]
    if steps:
        rows += _training(steps, seconds)
    rows += _evaluations([record for record in records if record["kind"] == "eval"])
    latest = find_latest(run_dir)
    if latest is not None:
        rows.append(("checkpoint", str(latest)))
    if latest is None:
        rows.append(("checkpoint", "nothing was saved: this run cannot be gone on with"))
    elif resume is not None:
        rows.append(("resume", resume))
    if latest is not None:
        rows.append(("merge", merge_command(run_dir, latest)))
    return "".join(f"{label:<{_LABEL_WIDTH}} {text}\n" for label, text in rows)


def resume_command(
    job: TrainJob, run_dir: Path, args: Iterable[str], *, command: Sequence[str] = ("gooseslo", "train")
) -> str:
    """What continues the run that `command` and the arguments `args` started, to be pasted into a shell.

    An empty command stands for a launcher that only the user knows how to start.
    """
    kept = [argument for argument in args if _key(argument) not in _OF_THIS_START]
    # a configuration file may say it too, so leaving the argument out is not enough
    if job.train.stop_after is not None:
        kept.append("train.stop_after=null")
    if job.checkpoint.resume != "auto":
        kept.append("checkpoint.resume=auto")
    line = shlex.join([*(command or ("gooseslo", "train")), *kept, as_argument("run.dir", str(run_dir))])
    return line if command else f"{line}  # the ranks started as before"


def merge_command(run_dir: Path, latest: Path) -> str:
    """The command that merges the newest checkpoint into a folder that is not there yet, to be pasted into a shell."""
    output = run_dir / "merged"
    if output.exists():
        output = run_dir / f"merged-{latest.name}"
    folders = as_argument("input", str(run_dir)), as_argument("output", str(output))
    return shlex.join(["gooseslo", "merge-checkpoint", *folders])


def _key(argument: str) -> str:
    """The key that an argument sets; empty for a flag and its value."""
    assignment = read_argument(argument)
    return assignment.key if isinstance(assignment, Assignment) else ""


def _training(steps: Sequence[Record], seconds: float) -> list[tuple[str, str]]:
    first, last = steps[0], steps[-1]
    speed = statistics.median(record["tokens_per_second"] for record in steps)
    losses = [f"{wording.number(record['loss'], '.4f')} at step {record['step']}" for record in (first, last)]
    return [
        ("steps", f"{last['step']:,}, {last['consumed_tokens']:,} tokens"),
        ("time", f"{wording.duration(seconds)}, {speed:,.0f} tokens/s"),
        ("loss", ", ".join(dict.fromkeys(losses))),
    ]


def _evaluations(evaluations: Sequence[Record]) -> list[tuple[str, str]]:
    """The best of the evaluations; the earlier of two that are equal."""
    finite = [record for record in evaluations if record["loss"] is not None]
    if not finite:
        return []
    return [("best", wording.evaluation(min(finite, key=lambda record: record["loss"])))]
