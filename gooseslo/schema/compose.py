"""From a verb's arguments to its job: Hydra composes the groups, and what the user typed is laid over them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gooseslo.errors import ConfigError, Fault
from gooseslo.schema.checks import check_schedule, check_train
from gooseslo.schema.choices import Choices, choose_options
from gooseslo.schema.config_file import read_config_file
from gooseslo.schema.groups import DoctorJob, GenerateJob, MergeJob, ModelConfig, PreprocessJob, TrainJob
from gooseslo.schema.keys import (
    DEEPSPEED_KEY,
    OPEN_KEY,
    OPEN_KEYS,
    OPTIONS_KEY,
    all_keys,
    keys_of,
    listed,
    nearest,
    open_key_above,
    owning_options,
    sections,
    type_of,
)
from gooseslo.schema.overrides import Assignment, read_argument
from gooseslo.schema.store import config_folders, group_names, register
from gooseslo.schema.values import OPEN, BadValueError, Scalar, read_value
from gooseslo.schema.verb_checks import check_generate, check_merge, check_preprocess

Job = TypeVar("Job", TrainJob, PreprocessJob, MergeJob, GenerateJob, DoctorJob)


def compose_train(
    args: Sequence[str],
    *,
    config_file: Path | None = None,
    check_further: Callable[[TrainJob], list[Fault]] = lambda job: [],
) -> TrainJob:
    """The job of `gooseslo train ARGS --config-file FILE`; raises ConfigError with every fault of both together.

    `check_further` may be slow: it is asked only about a job whose keys and values could all be read.
    """
    return _compose(TrainJob, args, config_file, check_train, check_further)


def compose_preprocess(args: Sequence[str], *, config_file: Path | None = None) -> PreprocessJob:
    """The job of `gooseslo preprocess`."""
    return _compose(PreprocessJob, args, config_file, check_preprocess)


def compose_merge(args: Sequence[str], *, config_file: Path | None = None) -> MergeJob:
    """The job of `gooseslo merge-checkpoint`."""
    return _compose(MergeJob, args, config_file, check_merge)


def compose_generate(args: Sequence[str], *, config_file: Path | None = None) -> GenerateJob:
    """The job of `gooseslo generate`."""
    return _compose(GenerateJob, args, config_file, check_generate)


def compose_doctor(args: Sequence[str], *, config_file: Path | None = None) -> DoctorJob:
    """The job of `gooseslo doctor`."""
    return _compose(DoctorJob, args, config_file, lambda job: [])


def _compose(
    job_type: type[Job],
    args: Sequence[str],
    config_file: Path | None,
    check: Callable[[Job], list[Fault]],
    check_further: Callable[[Job], list[Fault]] = lambda job: [],
) -> Job:
    read = [read_argument(argument) for argument in args]
    faults = [item for item in read if isinstance(item, Fault)]
    typed: list[Assignment] = [item for item in read if isinstance(item, Assignment)]
    filed: list[Assignment] = read_config_file(config_file, all_keys(job_type)) if config_file else []
    base: Any
    if job_type is TrainJob:
        choices = choose_options(filed, typed)
        base, values, groups = _compose_groups(choices), choices.values, group_names()
        faults += choices.faults
    else:
        base, values, groups = job_type(), [*filed, *typed], []
    job: Job = _one_run_folder(_lay_over(base, values, faults, groups), typed, faults)
    further = [] if faults else check_further(job)
    # A check that leans on a key that is already faulty would only repeat it.
    bad_keys = [fault.key.lstrip("+~") for fault in faults]
    found = check(job) + (_schedule_faults(job, typed) if isinstance(job, TrainJob) else [])
    faults += [fault for fault in found if not any(_mentions(fault, key) for key in bad_keys)]
    faults += further
    if faults:
        raise ConfigError(faults)
    return job


def _schedule_faults(job: TrainJob, typed: list[Assignment]) -> list[Fault]:
    """A typed schedule that is too long for its run; not where only the run was cut, as by train.steps=5 alone.

    A file may be the saved configuration of such a run, so what it says is taken as it is.
    """
    keys = {assignment.key for assignment in typed}
    return [fault for fault in check_schedule(job) if fault.key in keys]


def _mentions(fault: Fault, key: str) -> bool:
    """Whether the fault speaks of the key, or of any key of the group of that name."""
    end = r"\b" if key in group_names() else r"(?![\w.])"
    return re.search(rf"(?<![\w.]){re.escape(key)}{end}", str(fault)) is not None


def _compose_groups(choices: Choices) -> TrainJob:
    """The defaults under these options, by Hydra; leaves neither a folder nor Hydra's global state behind."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    register()
    overrides = [f"{group}={option}" for group, option in choices.options.items()]
    with initialize_config_dir(version_base="1.3", config_dir=str(config_folders()[0]), job_name="gooseslo"):
        config = compose("train", overrides)
    parts: dict[str, Any] = {}
    for name in config:
        # to_object gives the frozen dataclass of the node's own schema, so subclasses survive.
        parts[str(name)] = OmegaConf.to_object(config[name]) if OmegaConf.is_config(config[name]) else config[name]
    job = TrainJob(**parts)
    return dataclasses.replace(job, model=ModelConfig()) if choices.whole_model else job


def _lay_over(base: Any, values: list[Assignment], faults: list[Fault], groups: list[str]) -> Any:
    """`base` with the values set; a faulty value is left out and its fault appended to `faults`."""
    keys = keys_of(base)
    tree: dict[str, Any] = dataclasses.asdict(base)
    further = list(groups)
    if isinstance(base, TrainJob):
        further += [f"{OPEN_KEY}.{name}" for name in base.model.config]
    for assignment in values:
        hint = type_of(assignment.key, keys)
        if hint is None:
            faults.append(_unknown(assignment, keys, further))
            continue
        try:
            _set(tree, assignment, hint)
        except BadValueError as bad:
            faults.append(assignment.fault(bad.rule, bad.way_out))
    return _rebuilt(base, tree)


def _one_run_folder(job: Any, typed: list[Assignment], faults: list[Fault]) -> Any:
    """A run.name or run.dir that was typed replaces both: with the other's folder it would continue an older run."""
    given = {item.key: item for item in typed if item.key in ("run.name", "run.dir")}
    given = {key: item for key, item in given.items() if item.raw not in (None, Scalar("null"))}
    if not isinstance(job, TrainJob) or not given:
        return job
    if len(given) == 2:
        rule = "run.dir is given too, and each names the run folder"
        faults.append(given["run.name"].fault(rule, "give one of them"))
        return job
    run = dataclasses.replace(job.run, dir=None) if "run.name" in given else dataclasses.replace(job.run, name=None)
    return dataclasses.replace(job, run=run)


_EXAMPLES = {
    OPEN_KEY: "n_layer=12",
    OPTIONS_KEY: "momentum=0.9",
    DEEPSPEED_KEY: "zero_optimization.reduce_bucket_size=1000000",
}
"""Of a key below each of the open ones."""


def _set(tree: dict[str, Any], assignment: Assignment, hint: Any) -> None:
    *path, name = assignment.key.split(".")
    for depth, part in enumerate(path, 1):
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise BadValueError(f"{'.'.join(path[:depth])} is not a mapping")
    if assignment.raw is None:
        if hint is not OPEN or name not in tree:
            above, closest = open_key_above(assignment.key), nearest(name, tree) if hint is OPEN else None
            way_out = f"nearest: ~{above}.{closest}" if closest else ""
            raise BadValueError("is not there" if hint is OPEN else "cannot be removed, only set", way_out)
        del tree[name]
    elif assignment.key in OPEN_KEYS:
        value = read_value(assignment.raw, OPEN)
        if not isinstance(value, Mapping):
            example = _EXAMPLES[assignment.key]
            raise BadValueError("is not a mapping", f"set one field: {assignment.key}.{example}")
        tree[name].update(value)
    else:
        tree[name] = read_value(assignment.raw, hint)


def _rebuilt(base: Any, tree: dict[str, Any]) -> Any:
    """A job of the same classes as `base` with the values of `tree`."""
    parts = {
        name: _rebuilt(getattr(base, name), value) if dataclasses.is_dataclass(getattr(base, name)) else value
        for name, value in tree.items()
    }
    return type(base)(**parts)


def _unknown(assignment: Assignment, keys: dict[str, Any], further: list[str]) -> Fault:
    """No such key; `further` are names beside the keys that may have been meant: groups and fields of the model."""
    key = assignment.key
    if key in sections(keys):
        below = [name.removeprefix(f"{key}.") for name in keys if name.startswith(f"{key}.")]
        return assignment.fault("is not a key but a section", f"its keys: {listed(below)}")
    if further and (owners := owning_options(key)):
        way_out = f"choose it beside the key: {owners[0]} {key}=..."
        only = f"only {owners[0]} has" if len(owners) == 1 else f"only {', '.join(owners[:-1])} and {owners[-1]} have"
        return assignment.fault(f"{only} this key", way_out)
    closest = nearest(key, [*keys, *further])
    if closest is not None:
        return assignment.fault("no such key", f"nearest: {closest}")
    group = key.split(".")[0]
    beside = [name for name in [*keys, *further] if name.startswith(f"{group}.")]
    known = dict.fromkeys(beside or [name.split(".")[0] for name in [*keys, *further]])
    return assignment.fault("no such key", f"known: {listed(known)}")
