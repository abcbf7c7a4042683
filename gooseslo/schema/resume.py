"""Which keys a run may not change when it is continued."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from gooseslo.errors import Fault
from gooseslo.schema.groups import ConstantScheduleConfig, TrainJob
from gooseslo.schema.quoting import shortened

FIXED = (
    "run.seed",
    "model.architecture",
    "model.config",
    "model.head",
    "train.steps",
    "train.global_batch_size",
    "train.sequence_length",
    "optimizer",
    "lr_schedule",
    "data",
)
"""Keys and whole groups that decide what the run computes; everything else (layout, logging, ...) may change."""

FREE = ("data.workers", "data.reader")
"""Keys of fixed groups that decide only how the same samples are read."""

WHOLE = ("optimizer.groups", "optimizer.options")
"""Keys whose value is a mapping of names that are no keys."""


def check_resume(old: Mapping[str, Any], new: TrainJob) -> list[Fault]:
    """The differences that refuse to continue the run whose parsed config.yaml is `old` as `new`.

    A key that `old` lacks comes from a newer version: it must have its default.
    """
    before, after = dict(_leaves(old)), dict(_leaves(dataclasses.asdict(new)))
    defaults = dict(_leaves(dataclasses.asdict(_with_defaults(new))))
    faults = []
    for key in dict.fromkeys([*after, *before]):
        if key in FREE or not any(key == fixed or key.startswith(f"{fixed}.") for fixed in FIXED):
            continue
        was, value = before.get(key, defaults.get(key)), after.get(key)
        if was == value or (key == "train.steps" and _may_grow(was, value, new)):
            continue
        given = f"{key}={shortened(was, 300 if key in WHOLE else 60)}"
        place = key
        if key.startswith("data.") and isinstance(was, list) and isinstance(value, list):
            given = f"{key} as it was (config.yaml of the run has it)"
            place, was, value = _first_difference(key, was, value)
        rule = f"the run has {shortened(was)}, and a continued run cannot change it"
        way_out = f"give {given}, or start another run with run.name=NAME"
        if key == "train.steps" and isinstance(new.lr_schedule, ConstantScheduleConfig):
            rule = f"the run has {was}; the horizon may grow, not shrink"
        faults.append(Fault(key=place, value=shortened(value), rule=rule, way_out=way_out))
    return faults


def _first_difference(key: str, was: Any, value: Any) -> tuple[str, Any, Any]:
    """Where two values differ: its key, and what is there in either."""
    if isinstance(was, list) and isinstance(value, list) and len(was) == len(value):
        index = next(index for index, (old, new) in enumerate(zip(was, value)) if old != new)
        return _first_difference(f"{key}[{index}]", was[index], value[index])
    if isinstance(was, Mapping) and isinstance(value, Mapping):
        name = next(name for name in {**was, **value} if was.get(name) != value.get(name))
        return _first_difference(f"{key}.{name}", was.get(name), value.get(name))
    return key, was, value


def _may_grow(was: Any, value: Any, new: TrainJob) -> bool:
    return isinstance(new.lr_schedule, ConstantScheduleConfig) and isinstance(was, int) and value > was


def _with_defaults(job: TrainJob) -> TrainJob:
    """The defaults of the same group options."""
    groups = ("optimizer", "lr_schedule", "data")
    return TrainJob(**{name: type(getattr(job, name))() for name in groups})


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and f"{prefix}{name}" not in WHOLE:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
