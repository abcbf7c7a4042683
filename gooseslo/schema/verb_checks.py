"""What the jobs of preprocess, merge-checkpoint and generate must satisfy."""

from __future__ import annotations

import os
from pathlib import Path

from gooseslo.errors import Fault
from gooseslo.schema.groups import GenerateJob, MergeJob, PreprocessJob
from gooseslo.schema.quoting import shortened
from gooseslo.schema.ranges import (
    GENERATE_BOUNDS,
    GENERATE_CHOICES,
    PREPROCESS_BOUNDS,
    PREPROCESS_CHOICES,
    range_faults,
)

STANDARD_INPUT = "-"
LONGEST_NAME = 240
"""Bytes of an output's name: file systems allow 255, and .rejected.jsonl is the longest ending."""
INPUT_KEYS = (
    "train_tokenizer",
    "text_key",
    "format",
    "document",
    "append_eod",
    "eod_token",
    "special_tokens",
    "backend",
    "workers",
    "chunk_size",
    "resume",
    "on_error",
)
"""Of preprocess: of no use without `input`."""


def check_preprocess(job: PreprocessJob) -> list[Fault]:
    """One thing to do, with all that it needs and nothing that it ignores."""
    faults = range_faults(job, PREPROCESS_BOUNDS, PREPROCESS_CHOICES)
    asked = [key for key in ("input", "merge", "inspect") if getattr(job, key) is not None]
    if len(asked) != 1:
        way_out = "input=FILES, merge=[A,B], or inspect=PREFIX"
        if not asked:
            return [*faults, Fault(key="input", rule="is required", way_out=way_out)]
        rule = f"{' and '.join(asked)} are given, and each is a job of its own"
        return [*faults, Fault(key=asked[0], rule=rule, way_out=f"give one: {way_out}")]
    if asked == ["input"]:
        return faults + _check_input(job)
    ignored = [key for key in INPUT_KEYS if getattr(job, key) != getattr(PreprocessJob(), key)]
    if asked == ["merge"]:
        ignored += ["tokenizer"] * (job.tokenizer is not None)
        if not isinstance(job.merge, list) or len(job.merge) < 2:
            rule = "is not a list of two prefixes or more"
            faults.append(Fault(key="merge", value=shortened(job.merge), rule=rule, way_out="merge=[A,B]"))
        faults += _check_prefix(job.output)
    else:
        ignored += ["output"] * (job.output is not None)
    return faults + [Fault(key=key, rule=f"is of no use with {asked[0]}", way_out="leave it out") for key in ignored]


def _check_input(job: PreprocessJob) -> list[Fault]:
    faults = _check_prefix(job.output)
    if (job.tokenizer is None) == (job.train_tokenizer is None):
        rule = "one of the two is required" if job.tokenizer is None else "exclude each other"
        faults.append(
            Fault(
                key="tokenizer, train_tokenizer",
                rule=rule,
                way_out="tokenizer=NAME_OR_FOLDER, or train_tokenizer=ENTRIES",
            )
        )
    if job.eod_token is not None and not job.append_eod:
        way_out = "append_eod=true, or leave it out"
        faults.append(
            Fault(key="eod_token", value=job.eod_token, rule="is of no use with append_eod=false", way_out=way_out)
        )
    if STANDARD_INPUT in (job.input if isinstance(job.input, list) else [job.input]):
        way_out = "write it to a file first"
        if job.resume:
            faults.append(
                Fault(key="resume", value="true", rule="standard input cannot be read again", way_out=way_out)
            )
        if job.train_tokenizer is not None:
            rule = "reads the input twice, and standard input can be read once"
            faults.append(Fault(key="train_tokenizer", value=job.train_tokenizer, rule=rule, way_out=way_out))
    return faults


def _check_prefix(output: str | None) -> list[Fault]:
    """`output` is the first part of names that can be made."""
    if not output or output.endswith(("/", "/.", "/..")) or output in (".", ".."):
        rule = "is required" if not output else "is a folder, not the first part of a name"
        return [Fault(key="output", value=output or None, rule=rule, way_out="output=FOLDER/NAME")]
    if (size := len(os.fsencode(Path(output).name))) > LONGEST_NAME:
        rule = f"its name has {size} bytes; {LONGEST_NAME} leave room for the endings of its files"
        return [Fault(key="output", value=shortened(output), rule=rule, way_out="output=FOLDER/NAME, shorter")]
    try:
        parent = next(path for path in Path(output).absolute().parents if path.exists())
    except OSError as error:
        return [Fault(key="output", value=shortened(output), rule=f"cannot be made: {error.strerror}")]
    if not parent.is_dir():
        return [Fault(key="output", value=shortened(output), rule=f"{parent} is not a folder")]
    if not os.access(parent, os.W_OK | os.X_OK):
        return [Fault(key="output", value=shortened(output), rule=f"{parent} cannot be written to")]
    return []


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
