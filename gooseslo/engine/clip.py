"""The gradient norm of the whole model, each parameter counted once, and clipping by it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from gooseslo.parallel.collectives import Group, all_reduce_


@torch.no_grad()
def global_norm(counted: Iterable[nn.Parameter], group: Group, device: torch.device) -> Tensor:
    """The L2 norm over `group` (tensor x pipeline) of the gradients of `counted`: those this rank answers for.

    A fp64 scalar, bit-equal on all ranks of the group. Collective over `group`.
    """
    gradients = [parameter.grad for parameter in counted if parameter.grad is not None]
    total = torch.zeros((), dtype=torch.float64, device=device)
    if gradients:
        norms = torch._foreach_norm(gradients)
        total += torch.stack([norm.double() for norm in norms]).square().sum()
    return all_reduce_(total, group).sqrt()


@torch.no_grad()
def clip_gradients(flats: Iterable[Tensor], norm: Tensor, limit: float) -> None:
    """Scale all gradients so that their norm is at most `limit`; 0 or a smaller norm leaves them as they are."""
    if limit <= 0:
        return
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for flat in flats:
        flat.mul_(scale.to(flat.dtype))
