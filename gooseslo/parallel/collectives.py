"""Collectives that autograd can differentiate: the conjugate pairs of tensor parallelism.

`group` is None where the axis has one rank; then each function returns its input. Every function is collective over
`group`, in the forward pass or in the backward pass as its name says.

Sources: Shoeybi et al., "Megatron-LM" (arXiv:1909.08053), section 3 (the operators f and g); Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models" (arXiv:2205.05198), section 4.2.2 (g and its conjugate
under sequence parallelism). Sequence shards are equal parts of dim 1 of a [B, S, D] tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None
Change = Callable[[Tensor, dist.ProcessGroup], Tensor]


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


class _Conjugates(torch.autograd.Function):
    """One function of sequence shards forward, and another, of the gradient, backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, forward: Change, backward: Change) -> Tensor:
        ctx.group, ctx.conjugate = group, backward
        return forward(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.conjugate(gradient, ctx.group), None, None, None


def copy_to_group(x: Tensor, group: Group) -> Tensor:
    """Enter a tensor-parallel region: `x` is equal on all ranks, and the gradients of its uses are summed."""
    return x if group is None else _CopyForward.apply(x, group)


def sum_over_group(x: Tensor, group: Group) -> Tensor:
    """Leave a tensor-parallel region: partial results are summed; each rank's gradient is the whole one."""
    return x if group is None else _SumForward.apply(x, group)


def gather_sequence(shard: Tensor, group: Group) -> Tensor:
    """Enter a tensor-parallel region from sequence shards: gradients of the whole's uses are summed over ranks."""
    return shard if group is None else _Conjugates.apply(shard, group, all_gather_sequence, reduce_scatter_sequence)


def sum_scatter_sequence(partial: Tensor, group: Group) -> Tensor:
    """Leave a tensor-parallel region to sequence shards: partial results are summed, each rank keeps its shard."""
    return partial if group is None else _Conjugates.apply(partial, group, reduce_scatter_sequence, all_gather_sequence)


def cut_sequence(whole: Tensor, group: Group) -> Tensor:
    """From a tensor that is equal on all ranks to sequence shards; the whole gradient comes back to each rank."""
    return whole if group is None else _Conjugates.apply(whole, group, own_shard, all_gather_sequence)


def join_sequence(shard: Tensor, group: Group) -> Tensor:
    """From sequence shards to the whole, whose uses, and so its gradient, are equal on all ranks."""
    return shard if group is None else _Conjugates.apply(shard, group, all_gather_sequence, own_shard)


def all_gather_sequence(shard: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Every rank's [B, S / ranks, D], joined to [B, S, D]; not differentiable. Collective."""
    part_SBD = shard.transpose(0, 1).contiguous()
    whole_SBD = part_SBD.new_empty(part_SBD.shape[0] * group.size(), *part_SBD.shape[1:])
    dist.all_gather_single(whole_SBD, part_SBD, group=group)
    return whole_SBD.transpose(0, 1).contiguous()


def reduce_scatter_sequence(partial: Tensor, group: dist.ProcessGroup) -> Tensor:
    """This rank's [B, S / ranks, D] of the sum over all ranks' [B, S, D]; not differentiable. Collective."""
    whole_SBD = partial.transpose(0, 1).contiguous()
    part_SBD = whole_SBD.new_empty(whole_SBD.shape[0] // group.size(), *whole_SBD.shape[1:])
    dist.reduce_scatter_single(part_SBD, whole_SBD, group=group)
    return part_SBD.transpose(0, 1).contiguous()


def own_shard(whole: Tensor, group: dist.ProcessGroup) -> Tensor:
    """This rank's part of dim 1; contiguous, not differentiable."""
    return whole.chunk(group.size(), dim=1)[group.rank()].contiguous()


def all_reduce_(x: Tensor, group: Group, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
    """In-place all-reduce that bears a group of one; not differentiable."""
    if group is not None:
        dist.all_reduce(x, op=op, group=group)
    return x
