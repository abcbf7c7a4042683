"""From a verb's arguments to its job: Hydra composes the groups, and what the user typed is laid over them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gooseslo.errors import ConfigError, Fault
from gooseslo.schema.checks import check_train
from gooseslo.schema.choices import Choices, choose_options
from gooseslo.schema.config_file import read_config_file
from gooseslo.schema.groups import DoctorJob, GenerateJob, MergeJob, ModelConfig, TrainJob
from gooseslo.schema.keys import OPEN_KEY, all_keys, keys_of, listed, nearest, owning_options, sections, type_of
from gooseslo.schema.overrides import Assignment, read_argument
from gooseslo.schema.store import config_folders, group_names, register
from gooseslo.schema.values import OPEN, BadValue, read_value
from gooseslo.schema.verb_checks import check_generate, check_merge

Job = TypeVar("Job", TrainJob, MergeJob, GenerateJob, DoctorJob)


def compose_train(args: Sequence[str], *, config_file: Path | None = None) -> TrainJob:
    """The job of `gooseslo train ARGS --config-file FILE`; raises ConfigError with every fault of both together."""
    job, faults = _compose(TrainJob, args, config_file)
    return _checked(job, faults, check_train(job))


def compose_merge(args: Sequence[str], *, config_file: Path | None = None) -> MergeJob:
    """The job of `gooseslo merge-checkpoint`."""
    job, faults = _compose(MergeJob, args, config_file)
    return _checked(job, faults, check_merge(job))


def compose_generate(args: Sequence[str], *, config_file: Path | None = None) -> GenerateJob:
    """The job of `gooseslo generate`."""
    job, faults = _compose(GenerateJob, args, config_file)
    return _checked(job, faults, check_generate(job))


def compose_doctor(args: Sequence[str], *, config_file: Path | None = None) -> DoctorJob:
    """The job of `gooseslo doctor`."""
    job, faults = _compose(DoctorJob, args, config_file)
    return _checked(job, faults, [])


def _checked(job: Job, faults: list[Fault], further: list[Fault]) -> Job:
    """`job`, or all faults; a check that leans on a key that is already faulty would only repeat it."""
    bad_keys = [fault.key.lstrip("+~") for fault in faults]
    faults = faults + [fault for fault in further if not any(key in str(fault) for key in bad_keys)]
    if faults:
        raise ConfigError(faults)
    return job


def _compose(job_type: type[Job], args: Sequence[str], config_file: Path | None) -> tuple[Job, list[Fault]]:
    read = [read_argument(argument) for argument in args]
    faults = [item for item in read if isinstance(item, Fault)]
    typed = [item for item in read if isinstance(item, Assignment)]
    filed = read_config_file(config_file, all_keys(job_type)) if config_file else []
    if job_type is not TrainJob:
        return _lay_over(job_type(), [*filed, *typed], faults, groups=[])
    choices = choose_options(filed, typed)
    base = _compose_groups(choices)
    return _lay_over(base, choices.values, faults + choices.faults, groups=group_names())  # type: ignore[return-value]


def _compose_groups(choices: Choices) -> TrainJob:
    """The defaults under these options, by Hydra; leaves neither a folder nor Hydra's global state behind."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    register()
    overrides = [f"{group}={option}" for group, option in choices.options.items()]
    with initialize_config_dir(version_base="1.3", config_dir=str(config_folders()[0]), job_name="gooseslo"):
        config = compose("train", overrides)
    parts = {str(name): config[name] for name in config}
    # to_object gives the frozen dataclass of each node's schema; __post_init__ and subclasses included.
    job = TrainJob(**{name: OmegaConf.to_object(part) if OmegaConf.is_config(part) else part for name, part in parts.items()})
    return dataclasses.replace(job, model=ModelConfig()) if choices.whole_model else job


def _lay_over(base: Job, values: list[Assignment], faults: list[Fault], groups: list[str]) -> tuple[Job, list[Fault]]:
    """`base` with the values set, and the faults so far and of these values; a faulty value is left out."""
    keys = keys_of(base)
    tree: dict[str, Any] = dataclasses.asdict(base)
    faults = list(faults)
    for assignment in values:
        hint = type_of(assignment.key, keys)
        if hint is None:
            faults.append(_unknown(assignment, keys, groups))
            continue
        try:
            _set(tree, assignment, hint)
        except BadValue as bad:
            faults.append(assignment.fault(bad.rule, bad.way_out))
    return _rebuilt(base, tree), faults


def _set(tree: dict[str, Any], assignment: Assignment, hint: Any) -> None:
    *path, name = assignment.key.split(".")
    for depth, part in enumerate(path, 1):
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise BadValue(f"{'.'.join(path[:depth])} is not a mapping")
    if assignment.raw is None:
        if hint is not OPEN or name not in tree:
            way_out = f"nearest: ~{OPEN_KEY}.{nearest(name, tree)}" if hint is OPEN and nearest(name, tree) else ""
            raise BadValue("is not there" if hint is OPEN else "cannot be removed, only set", way_out)
        del tree[name]
    elif assignment.key == OPEN_KEY:
        value = read_value(assignment.raw, OPEN)
        if not isinstance(value, Mapping):
            raise BadValue("is not a mapping", f"set one field: {OPEN_KEY}.n_layer=12")
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


def _unknown(assignment: Assignment, keys: dict[str, Any], groups: list[str]) -> Fault:
    key = assignment.key
    if key in sections(keys):
        below = [name.removeprefix(f"{key}.") for name in keys if name.startswith(f"{key}.")]
        return assignment.fault("is not a key but a section", f"its keys: {listed(below)}")
    if owners := owning_options(key) if groups else []:
        return assignment.fault(f"only {' and '.join(owners)} has this key", f"choose it beside the key: {owners[0]} {key}=...")
    closest = nearest(key, [*keys, *groups])
    if closest is not None:
        return assignment.fault("no such key", f"nearest: {closest}")
    return assignment.fault("no such key", f"known: {listed(dict.fromkeys(name.split('.')[0] for name in [*keys, *groups]))}")
