"""The gradient norm of the whole model, each parameter counted once, and clipping by it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gooseslo.parallel.collectives import Group, all_reduce_


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """What all ranks know of a step's gradients and losses."""

    norm: Tensor
    """L2 norm of the whole model's gradient; a fp64 scalar, bit-equal on all ranks."""
    gradients_are_finite: bool
    """On every rank, in every copy of a parameter."""
    losses_are_finite: bool
    """On every rank."""
    own_gradients_are_finite: bool
    """On this rank: the others do not know it."""


@torch.no_grad()
def agree_on(
    *,
    counted: Iterable[nn.Parameter],
    copies: Iterable[nn.Parameter] = (),
    num_bad_losses: int = 0,
    groups: Sequence[Group],
    replicas: Group = None,
    device: torch.device,
) -> Agreed:
    """The norm of the gradients of `counted`, and whether every rank's gradients and losses are finite.

    `counted` are the parameters that this rank alone answers for; `copies` the others it steps, whose gradients are
    looked at as well: an infinity in one rank's copy must be known to all. The norm is summed over `groups` (tensor x
    pipeline, data-parallel shards), findings over the data-parallel `replicas` too; collective over all of these.
    """
    norms, others = (_norms(parameters, device) for parameters in (counted, copies))
    own_bad = (~norms.isfinite()).sum() + (~others.isfinite()).sum()
    sums = torch.stack([norms.square().sum(), own_bad.double(), torch.full_like(own_bad.double(), num_bad_losses)])
    for group in groups:
        all_reduce_(sums, group)
    bad_gradients, bad_losses = all_reduce_(sums[1:].clone(), replicas).tolist()
    return Agreed(
        norm=sums[0].sqrt(),
        gradients_are_finite=bad_gradients == 0,
        losses_are_finite=bad_losses == 0,
        own_gradients_are_finite=own_bad.item() == 0,
    )


def _norms(parameters: Iterable[nn.Parameter], device: torch.device) -> Tensor:
    """fp64 [number of gradients]."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros(0, dtype=torch.float64, device=device)
    return torch.stack([norm.double() for norm in torch._foreach_norm(gradients)]).to(device)


@torch.no_grad()
def clip_gradients(flats: Iterable[Tensor], norm: Tensor, limit: float, *, scale: float = 1.0) -> None:
    """Divide all gradients by `scale`, and bring their norm, `norm` after that, to `limit` at most; 0: no limit."""
    if limit <= 0 and scale == 1.0:
        return
    factor = (limit / (norm + 1e-6)).clamp(max=1.0) if limit > 0 else torch.ones_like(norm)
    factor /= scale
    for flat in flats:
        flat.mul_(factor.to(flat))  # masters that are offloaded have their gradients on the CPU
