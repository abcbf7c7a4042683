"""What the jobs of merge-checkpoint and generate must satisfy."""

from __future__ import annotations

import os
from pathlib import Path

from gooseslo.errors import Fault
from gooseslo.schema.groups import GenerateJob, MergeJob
from gooseslo.schema.quoting import shortened
from gooseslo.schema.ranges import GENERATE_BOUNDS, GENERATE_CHOICES, range_faults


def check_merge(job: MergeJob) -> list[Fault]:
    """`input` is a folder, `output` is free, `model.step` is latest or a number."""
    faults = _check_folder("input", job.input)
    if not job.output:
        faults.append(Fault(key="output", rule="is required", way_out="output=FOLDER"))
    elif (blocker := _blocker(Path(job.output))) is not None:
        faults.append(Fault(key="output", value=shortened(job.output), rule=blocker, way_out="name a new folder"))
    step = job.model.step
    if step != "latest" and not (step.isascii() and step.isdigit()):
        faults.append(Fault(key="model.step", value=shortened(step), rule="is neither latest nor a number"))
    return faults


def check_generate(job: GenerateJob) -> list[Fault]:
    """`model.path` is a folder, and the sampling parameters are in range."""
    return _check_folder("model.path", job.model.path) + range_faults(job, GENERATE_BOUNDS, GENERATE_CHOICES)


def _check_folder(key: str, path: str | None) -> list[Fault]:
    if not path:
        return [Fault(key=key, rule="is required", way_out=f"{key}=FOLDER")]
    if not Path(path).is_dir():
        rule = "is not a folder" if Path(path).exists() else "there is no such folder"
        return [Fault(key=key, value=shortened(path), rule=rule)]
    return []


def _blocker(output: Path) -> str | None:
    """Why the folder cannot be written, or None."""
    if output.is_dir():
        return "exists and is not empty" if any(output.iterdir()) else None
    if output.exists():
        return "exists and is not a folder"
    parent = next(path for path in output.absolute().parents if path.exists())
    if not parent.is_dir():
        return f"{parent} is not a folder"
    return None if os.access(parent, os.W_OK | os.X_OK) else f"{parent} cannot be written to"
