"""The gradient norm of the whole model, each parameter counted once, and clipping by it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from gooseslo.parallel.collectives import Group, all_reduce_


@torch.no_grad()
def global_norm(counted: Iterable[nn.Parameter], groups: Sequence[Group], device: torch.device) -> Tensor:
    """The L2 norm over `groups` (tensor x pipeline, data-parallel shards) of the gradients of `counted`.

    `counted` are those that this rank alone answers for. A fp64 scalar, bit-equal on all ranks of each group, over
    which the function is collective.
    """
    gradients = [parameter.grad for parameter in counted if parameter.grad is not None]
    total = torch.zeros((), dtype=torch.float64, device=device)
    if gradients:
        norms = torch._foreach_norm(gradients)
        total += torch.stack([norm.double() for norm in norms]).square().sum()
    for group in groups:
        all_reduce_(total, group)
    return total.sqrt()


@torch.no_grad()
def clip_gradients(flats: Iterable[Tensor], norm: Tensor, limit: float) -> None:
    """Scale all gradients so that their norm is at most `limit`; 0 or a smaller norm leaves them as they are."""
    if limit <= 0:
        return
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for flat in flats:
        flat.mul_(scale.to(flat.dtype))
