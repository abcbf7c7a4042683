"""The optimizer: a class of torch.optim over the groups that the configuration makes, and its state by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gooseslo.errors import Fault
from gooseslo.parallel.data.strategy import Part
from gooseslo.schema.groups import OptimizerConfig
from gooseslo.schema.optimizers import CLASSES, OWN_OPTIONS, arguments_of, as_argument, class_name
from gooseslo.schema.param_groups import settings_of

_COUNT = "step"
"""The one entry of a parameter's state that is no tensor of a checkpoint: it is the run's number of updates."""


def build_optimizer(config: OptimizerConfig, stepped: Sequence[Part]) -> torch.optim.Optimizer:
    """The optimizer of what this rank steps, by the names that a checkpoint has for the weights.

    Norms and biases (fewer than two dims) do not decay, unless `config.groups` says so.
    """
    members: dict[tuple[tuple[str, Any], ...], list[nn.Parameter]] = {}
    for part in stepped:
        options = _group_options(config, part)
        members.setdefault(tuple(sorted(options.items())), []).append(part.parameter)
    groups: list[dict[str, Any]] = [{"params": group, **dict(options)} for options, group in members.items()]
    groups = groups or [{"params": []}]  # a rank that steps nothing; torch wants at least one group
    name = class_name(config)
    fused = {"fused": True} if CLASSES[name].is_fused else {}
    optimizer: torch.optim.Optimizer = getattr(torch.optim, name)(groups, lr=config.lr, **arguments_of(config), **fused)
    return optimizer


def optimizer_faults(config: OptimizerConfig) -> list[Fault]:
    """What the class itself has against its arguments, in its own words: tried on a weight of one number."""
    part = Part(name="", parameter=nn.Parameter(torch.zeros(1, 1)), num_dims=2)
    for pattern, settings in (("", {}), *config.groups.items()):
        try:
            build_optimizer(config, [part])
            arguments = {**arguments_of(config), **{name: as_argument(value) for name, value in settings.items()}}
            decay = {"weight_decay": config.weight_decay} if CLASSES[class_name(config)].decays else {}
            getattr(torch.optim, class_name(config))([part.parameter], **{"lr": config.lr, **decay, **arguments})
        except (TypeError, ValueError) as error:
            where = f' for "{pattern}"' if pattern else ""
            key = "optimizer.groups" if pattern else "optimizer" if config.name in OWN_OPTIONS else "optimizer.name"
            rule = f"torch.optim.{class_name(config)} refuses its arguments{where}: {error}"
            return [Fault(key=key, value=None if pattern else config.name, rule=rule)]
    return []


def _group_options(config: OptimizerConfig, part: Part) -> dict[str, Any]:
    """What torch is told of one parameter; parameters with equal options make a group."""
    options: dict[str, Any] = {"lr": config.lr}
    if CLASSES[class_name(config)].decays:
        options["weight_decay"] = config.weight_decay if part.num_dims >= 2 else 0.0
    options |= settings_of(config.groups, part.name)
    options["lr_factor"] = options["lr"] / config.lr if config.lr else 1.0
    return {key: as_argument(value) for key, value in options.items()}


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the schedule's learning rate; a group with a rate of its own follows in proportion."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_factor", 1.0)


def optimizer_tensors(optimizer: torch.optim.Optimizer, stepped: Sequence[Part]) -> Iterator[tuple[str, Part, Tensor]]:
    """What the optimizer keeps for each part by now: (exp_avg, part, tensor) and so on.

    Most have the part's shape. A scalar (NAdam's mu_product) is the same for all parts of a weight; another shape
    (Adafactor's rows and columns) is there for whole weights alone.
    """
    for part in stepped:
        for key, value in optimizer.state[part.parameter].items():
            if key != _COUNT and isinstance(value, Tensor):
                yield key, part, value


@torch.no_grad()
def make_state(optimizer: torch.optim.Optimizer, *, updates: int) -> None:
    """State as after so many updates, its tensors to be filled by a checkpoint; for a resumed run.

    It is made by an update with gradients of zero, so that nothing here need know the classes: call it before the
    weights are loaded. Before the first update most have no state at all, and must find none.
    """
    if updates == 0:
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.zero_()
    optimizer.step()
    for parameter, gradient in zip(parameters, before, strict=True):
        parameter.grad = gradient
        count = optimizer.state[parameter].get(_COUNT)
        if count is not None:
            count.fill_(updates)
