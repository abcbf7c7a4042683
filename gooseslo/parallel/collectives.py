"""Collectives that autograd can differentiate: the conjugate pairs of tensor parallelism.

`group` is None where the axis has one rank; then each function returns its input. Every function is collective over
`group`, in the forward pass or in the backward pass as its name says.

Source: Shoeybi et al., "Megatron-LM" (arXiv:1909.08053), section 3 (the operators f and g).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None


class _CopyForward(torch.autograd.Function):
    """f: identity forward, sum of gradients backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # The incoming gradient may be shared with another branch of the graph: never reduce it in place.
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _SumForward(torch.autograd.Function):
    """g: sum forward, identity backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        x = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def copy_to_group(x: Tensor, group: Group) -> Tensor:
    """Enter a tensor-parallel region: `x` is equal on all ranks, and the gradients of its uses are summed."""
    return x if group is None else _CopyForward.apply(x, group)


def sum_over_group(x: Tensor, group: Group) -> Tensor:
    """Leave a tensor-parallel region: partial results are summed; each rank's gradient is the whole one."""
    return x if group is None else _SumForward.apply(x, group)


def all_reduce_(x: Tensor, group: Group, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
    """In-place all-reduce that bears a group of one; not differentiable."""
    if group is not None:
        dist.all_reduce(x, op=op, group=group)
    return x
