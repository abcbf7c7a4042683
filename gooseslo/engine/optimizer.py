"""The optimizer: torch's AdamW or SGD over the groups that the configuration makes, and its state by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gooseslo.parallel.tensor.layouts import Placement
from gooseslo.schema.groups import AdamWConfig, OptimizerConfig, SGDConfig
from gooseslo.schema.param_groups import settings_of

STATE_KEYS = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}
"""The tensors that an optimizer keeps for each parameter, of the parameter's shape."""


def build_optimizer(config: OptimizerConfig, parameters: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of this rank's parameters, by the names that a checkpoint has for them.

    Norms and biases (fewer than two dims) do not decay, unless `config.groups` says so.
    """
    members: dict[tuple[tuple[str, Any], ...], list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        options = _group_options(config, name, parameter)
        members.setdefault(tuple(sorted(options.items())), []).append(parameter)
    groups = [{"params": group, **dict(options)} for options, group in members.items()]
    if isinstance(config, AdamWConfig):
        first, second = config.betas
        return torch.optim.AdamW(groups, lr=config.lr, betas=(first, second), eps=config.eps, fused=True)
    assert isinstance(config, SGDConfig), f"no optimizer for {config}"
    return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)


def _group_options(config: OptimizerConfig, name: str, parameter: nn.Parameter) -> dict[str, Any]:
    """What torch is told of one parameter; parameters with equal options make a group."""
    settings = settings_of(config.groups, name)
    decay = config.weight_decay if parameter.dim() >= 2 else 0.0
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
    parameters: dict[str, nn.Parameter],
    placements: dict[str, Placement],
    *,
    create: bool = False,
) -> dict[str, tuple[Tensor, Placement]]:
    """The optimizer's tensors as `exp_avg/<parameter>`, with the parameter's placement.

    With `create` absent state is made as zeros, to be filled by a checkpoint; without it absent state is left out.
    """
    momentum = {p: group.get("momentum", 0.0) for group in optimizer.param_groups for p in group["params"]}
    result: dict[str, tuple[Tensor, Placement]] = {}
    for parameter_name, parameter in parameters.items():
        state = optimizer.state[parameter]
        for key in STATE_KEYS[name]:
            is_kept = key != "momentum_buffer" or momentum[parameter] > 0
            if create and key not in state and is_kept:
                state[key] = torch.zeros_like(parameter)
            if state.get(key) is not None:
                result[f"{key}/{parameter_name}"] = (state[key], placements[parameter_name])
    return result


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
