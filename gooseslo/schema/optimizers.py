"""The classes of torch.optim as facts: their arguments, and whether an update may be done piece by piece.

A test holds this table to the torch that is installed; nothing here imports it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gooseslo.errors import Fault
from gooseslo.schema.groups import ConstantScheduleConfig, OptimizerConfig, TrainJob
from gooseslo.schema.keys import listed, nearest
from gooseslo.schema.quoting import shortened

TORCH = "torch"
"""The option of the group `optimizer` for a class by its own name."""
OWN_OPTIONS = {"adamw": "AdamW", "sgd": "SGD", "adafactor": "Adafactor"}
"""Options with typed keys, and the classes that they stand for."""
OURS = ("foreach", "fused", "capturable", "differentiable")
"""Arguments on how an update is computed, not on what: gooseslo decides them."""


@dataclass(frozen=True, kw_only=True)
class OptimizerClass:
    """One class of torch.optim."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Beside lr, weight_decay and those of OURS: name -> torch's default."""
    decays: bool = True
    """It has a weight_decay."""
    is_elementwise: bool = True
    """Each element's update follows from that element's gradients alone, so that a piece of a weight can be stepped."""
    is_fused: bool = False
    """torch has one kernel for the whole update, on the CPU and on CUDA, and gooseslo takes it."""
    follows_schedule: bool = True
    """The learning rate counts at every update; False: only at the first."""
    refused: str = ""
    """Why no run can have it; empty where runs can."""


_ADAM = {"betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False, "maximize": False}
CLASSES: Mapping[str, OptimizerClass] = {
    "ASGD": OptimizerClass(arguments={"lambd": 1e-4, "alpha": 0.75, "t0": 1e6, "maximize": False}),
    "Adadelta": OptimizerClass(arguments={"rho": 0.9, "eps": 1e-6, "maximize": False}),
    "Adafactor": OptimizerClass(
        arguments={"beta2_decay": -0.8, "eps": (None, 1e-3), "d": 1.0, "maximize": False}, is_elementwise=False
    ),
    "Adagrad": OptimizerClass(
        arguments={"lr_decay": 0, "initial_accumulator_value": 0, "eps": 1e-10, "maximize": False}
    ),
    "Adam": OptimizerClass(arguments={**_ADAM, "decoupled_weight_decay": False}, is_fused=True),
    "AdamW": OptimizerClass(arguments=_ADAM, is_fused=True),
    "Adamax": OptimizerClass(arguments={"betas": (0.9, 0.999), "eps": 1e-8, "maximize": False}),
    "LBFGS": OptimizerClass(
        refused="it computes the loss several times an update, and a step of the pipeline has one pass"
    ),
    "Muon": OptimizerClass(
        is_elementwise=False, refused="it updates matrices alone, and a model has norms and biases as well"
    ),
    "NAdam": OptimizerClass(
        arguments={
            "betas": (0.9, 0.999),
            "eps": 1e-8,
            "momentum_decay": 4e-3,
            "decoupled_weight_decay": False,
            "maximize": False,
        }
    ),
    "RAdam": OptimizerClass(
        arguments={"betas": (0.9, 0.999), "eps": 1e-8, "decoupled_weight_decay": False, "maximize": False}
    ),
    "RMSprop": OptimizerClass(
        arguments={"alpha": 0.99, "eps": 1e-8, "momentum": 0, "centered": False, "maximize": False}
    ),
    "Rprop": OptimizerClass(
        arguments={"etas": (0.5, 1.2), "step_sizes": (1e-6, 50), "maximize": False},
        decays=False,
        follows_schedule=False,
    ),
    "SGD": OptimizerClass(arguments={"momentum": 0, "dampening": 0, "nesterov": False, "maximize": False}),
    "SparseAdam": OptimizerClass(decays=False, refused="it takes sparse gradients alone, and these are dense"),
}
"""By name in torch.optim."""
_NAMED = ("name", "lr", "weight_decay", "groups", "options")
"""Keys of every optimizer; further ones of an option are arguments of its class."""


def option_of(name: str) -> str | None:
    """The group's option that a name stands for: `AdamW` is adamw, `RMSprop` is torch; None: no such optimizer."""
    if name in OWN_OPTIONS:
        return name
    own = [option for option, of_torch in OWN_OPTIONS.items() if of_torch == name]
    return own[0] if own else TORCH if name in CLASSES else None


def class_name(config: OptimizerConfig) -> str:
    """The name in torch.optim."""
    return OWN_OPTIONS.get(config.name, config.name)


def arguments_of(config: OptimizerConfig) -> dict[str, Any]:
    """What the class is given beside lr and weight_decay; torch takes pairs as tuples."""
    typed = {each.name: getattr(config, each.name) for each in fields(config) if each.name not in _NAMED}
    return {name: as_argument(value) for name, value in {**typed, **config.options}.items()}


def as_argument(value: Any) -> Any:
    """A value as torch takes it."""
    return tuple(value) if isinstance(value, list) else value


def name_fault(key: str, value: object) -> Fault:
    """No optimizer is called so."""
    known = {name.lower(): name for name in (*OWN_OPTIONS, *allowed_classes())}
    closest = nearest(str(value).lower(), known)
    way_out = f"nearest: {known[closest]}; " if closest else ""
    way_out += f"choices: {listed(OWN_OPTIONS)}, or of torch.optim {listed(allowed_classes())}"
    return Fault(key=key, value=shortened(value), rule="no such optimizer", way_out=way_out)


def allowed_classes() -> list[str]:
    """Names of the classes that runs can have and that have no option of their own."""
    return [name for name, each in CLASSES.items() if not each.refused and name not in OWN_OPTIONS.values()]


def check_optimizer(job: TrainJob) -> list[Fault]:
    """A class that cannot be had, or not in this layout, and arguments that it does not take."""
    config = job.optimizer
    if class_name(config) not in CLASSES:
        return [name_fault("optimizer.name", config.name)]
    facts = CLASSES[class_name(config)]
    if facts.refused:
        way_out = f"choices: {listed([*OWN_OPTIONS, *allowed_classes()])}"
        return [Fault(key="optimizer.name", value=config.name, rule=facts.refused, way_out=way_out)]
    faults = _check_layout(job, facts) + _check_options(config, facts)
    if config.weight_decay and not facts.decays:
        rule, way_out = f"{config.name} has no weight decay", "leave it out"
        faults.append(Fault(key="optimizer.weight_decay", value=config.weight_decay, rule=rule, way_out=way_out))
    schedule = job.lr_schedule
    if not facts.follows_schedule and (schedule.warmup_steps or not isinstance(schedule, ConstantScheduleConfig)):
        rule = f"{config.name} takes its rate from the first update alone and would ignore the schedule"
        way_out = "give lr_schedule=constant lr_schedule.warmup_steps=0"
        faults.append(Fault(key="lr_schedule", value=schedule.name, rule=rule, way_out=way_out))
    return faults


def _check_layout(job: TrainJob, facts: OptimizerClass) -> list[Fault]:
    """What needs whole weights cannot have them cut, by tensor parallelism or into ZeRO's ranges."""
    if facts.is_elementwise:
        return []
    cut = [("parallel.tp", job.parallel.tp, 1), ("zero.stage", job.zero.stage, 0)]
    rule = f"optimizer={job.optimizer.name} needs each weight whole: its update of an element depends on the others"
    way_out = "nearest: {}={}, with parallel.pp and parallel.dp as you like; or optimizer=adamw"
    return [
        Fault(key=key, value=value, rule=rule, way_out=way_out.format(key, legal))
        for key, value, legal in cut
        if value > legal
    ]


def _check_options(config: OptimizerConfig, facts: OptimizerClass) -> list[Fault]:
    typed = {each.name for each in fields(config)} - {"name", "groups", "options"}
    open_names = [name for name in facts.arguments if name not in typed]
    faults = []
    for name, value in config.options.items():
        key, of = f"optimizer.options.{name}", f"torch.optim.{class_name(config)}"
        rule = way_out = ""
        if name in typed:
            rule, way_out = "has a key of its own", f"give optimizer.{name}"
        elif name in OURS:
            rule, way_out = "gooseslo decides how an update is computed", "leave it out"
        elif name not in facts.arguments:
            closest = nearest(str(name), open_names)
            rule = f"{of} has no such argument"
            way_out = f"nearest: {closest}; " * (closest is not None) + f"arguments: {listed(open_names)}"
        elif not fits(value, facts.arguments[name]):
            rule = f"must be {kind_of(facts.arguments[name])}"
        if rule:
            faults.append(Fault(key=key, value=shortened(json.dumps(value, default=str)), rule=rule, way_out=way_out))
    return faults


def fits(value: Any, default: Any) -> bool:
    """Whether a value is of the kind of torch's default."""
    if isinstance(default, tuple):
        pairs = zip(value, default) if isinstance(value, list | tuple) and len(value) == len(default) else None
        return pairs is not None and all(fits(each, other) for each, other in pairs)
    if default is None:
        return value is None or fits(value, 0.0)
    if isinstance(default, bool):
        return isinstance(value, bool)
    return isinstance(value, int | float) and not isinstance(value, bool)


def kind_of(default: Any) -> str:
    """The kind in words."""
    if isinstance(default, tuple):
        return f"a list of {len(default)} numbers" + " (the first may be null)" * (default[0] is None)
    return "true or false" if isinstance(default, bool) else "a number"
