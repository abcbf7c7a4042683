"""The optimizer and its learning rate: torch's AdamW or SGD over two groups, and schedules as plain functions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gooseslo.parallel.tensor.layouts import Placement
from gooseslo.schema.groups import (
    AdamWConfig,
    ConstantScheduleConfig,
    CosineScheduleConfig,
    LRScheduleConfig,
    OptimizerConfig,
    SGDConfig,
)

STATE_KEYS = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}
"""The tensors that an optimizer keeps for each parameter, of the parameter's shape."""


def build_optimizer(config: OptimizerConfig, parameters: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of this rank's parameters; norms and biases (fewer than two dims) do not decay."""
    decayed = [p for p in parameters.values() if p.dim() >= 2]
    others = [p for p in parameters.values() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if isinstance(config, AdamWConfig):
        first, second = config.betas
        return torch.optim.AdamW(groups, lr=config.lr, betas=(first, second), eps=config.eps, fused=True)
    assert isinstance(config, SGDConfig), f"no optimizer for {config}"
    return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)


def build_lr_schedule(config: LRScheduleConfig, *, peak: float, horizon: int) -> Callable[[int], float]:
    """Updates done so far -> learning rate of the next; `horizon` is the run's number of steps.

    Warm-up is linear from 0 and reaches the peak after `warmup_steps` updates.
    """
    warmup = config.warmup_steps

    def after_warmup(updates: int) -> float:
        if isinstance(config, ConstantScheduleConfig):
            return peak
        assert isinstance(config, CosineScheduleConfig), f"no schedule for {config}"
        progress = min(1.0, (updates - warmup) / max(1, horizon - warmup))
        low = config.min_ratio * peak
        return low + (peak - low) * 0.5 * (1.0 + math.cos(math.pi * progress))

    return lambda updates: peak * updates / warmup if updates < warmup else after_warmup(updates)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr


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
    result: dict[str, tuple[Tensor, Placement]] = {}
    for parameter_name, parameter in parameters.items():
        state = optimizer.state[parameter]
        for key in STATE_KEYS[name]:
            if create and key not in state and _is_kept(optimizer, key):
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


def _is_kept(optimizer: torch.optim.Optimizer, key: str) -> bool:
    """SGD keeps a buffer only with momentum."""
    return key != "momentum_buffer" or any(group["momentum"] for group in optimizer.param_groups)
