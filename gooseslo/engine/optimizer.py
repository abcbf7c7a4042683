"""The optimizer: torch's AdamW or SGD over the groups that the configuration makes, and its state by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gooseslo.parallel.data.strategy import Part
from gooseslo.schema.groups import AdamWConfig, OptimizerConfig, SGDConfig
from gooseslo.schema.param_groups import settings_of

STATE_KEYS = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}
"""The tensors that an optimizer keeps for each parameter, of the parameter's shape."""


def build_optimizer(config: OptimizerConfig, stepped: Sequence[Part]) -> torch.optim.Optimizer:
    """The optimizer of what this rank steps, by the names that a checkpoint has for the weights.

    Norms and biases (fewer than two dims) do not decay, unless `config.groups` says so.
    """
    members: dict[tuple[tuple[str, Any], ...], list[nn.Parameter]] = {}
    for part in stepped:
        options = _group_options(config, part)
        members.setdefault(tuple(sorted(options.items())), []).append(part.parameter)
    groups = [{"params": group, **dict(options)} for options, group in members.items()]
    if isinstance(config, AdamWConfig):
        first, second = config.betas
        return torch.optim.AdamW(groups, lr=config.lr, betas=(first, second), eps=config.eps, fused=True)
    assert isinstance(config, SGDConfig), f"no optimizer for {config}"
    return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)


def _group_options(config: OptimizerConfig, part: Part) -> dict[str, Any]:
    """What torch is told of one parameter; parameters with equal options make a group."""
    settings = settings_of(config.groups, part.name)
    decay = config.weight_decay if part.num_dims >= 2 else 0.0
    options = {"lr": config.lr, "weight_decay": decay, **settings}
    options["lr_factor"] = options["lr"] / config.lr if config.lr else 1.0
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the schedule's learning rate; a group with a rate of its own follows in proportion."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_factor", 1.0)


def optimizer_tensors(
    optimizer: torch.optim.Optimizer,
    name: str,
    stepped: Sequence[Part],
    *,
    create: bool = False,
) -> Iterator[tuple[str, Part, Tensor]]:
    """What the optimizer keeps for each part, of the part's shape: (exp_avg, part, tensor) and so on.

    With `create` absent state is made as zeros, to be filled by a checkpoint; without it absent state is left out.
    """
    momentum = {p: group.get("momentum", 0.0) for group in optimizer.param_groups for p in group["params"]}
    for part in stepped:
        parameter = part.parameter
        state = optimizer.state[parameter]
        for key in STATE_KEYS[name]:
            is_kept = key != "momentum_buffer" or momentum[parameter] > 0
            if create and key not in state and is_kept:
                state[key] = torch.zeros_like(parameter)
            if state.get(key) is not None:
                yield key, part, state[key]


def set_updates(optimizer: torch.optim.Optimizer, updates: int) -> None:
    """Tell AdamW's bias correction how many updates were done; for a resumed run.

    Before the first update there is no state at all, and AdamW must find none.
    """
    if updates == 0:
        return
    for group in optimizer.param_groups:
        if "betas" in group:
            for parameter in group["params"]:
                optimizer.state[parameter]["step"] = torch.tensor(float(updates), device=parameter.device)
