"""The message that sums a region's input gradient travels while the weight gradients of its layers are computed.

Of nodes that are ready, autograd runs the one that was made last. A region makes, in this order, the node that waits
for the message, those of its weights, and the one that starts the message: backward they run the other way round.

Source: the asynchronous all-reduce in the column-parallel layers of Megatron-LM (arXiv:1909.08053 has the layers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gooseslo.parallel.collectives import all_gather_sequence, copy_to_group, gather_sequence
from gooseslo.parallel.tensor.linear import HandedWeight, stand_in

Finish = Callable[[], Tensor]
Start = Callable[[Tensor], Finish]
"""From a gradient: starts a message; what it gives waits for the result."""


class WeightTaker(Protocol):
    """A layer that computes with its region's input."""

    weight: nn.Parameter
    handed: HandedWeight | None
    """For its next forward pass, which takes it away; None: it uses the weight itself."""


def enter_region(x: Tensor, layers: Sequence[WeightTaker], change: Callable[[Tensor], Tensor], start: Start) -> Tensor:
    """What a region computes with, `change(x)`, the gradient of which goes through `start` to x.

    `layers` are those that use it. Collective in the backward pass, as `start` is.
    """
    pending = _Pending()
    x = _Wait.apply(x, pending)
    for layer in layers:
        layer.handed = HandedWeight(layer.weight)
    entered: Tensor = _Enter.apply(x, change, start, pending)
    return entered


def copy_to_region(x: Tensor, layers: Sequence[WeightTaker], group: dist.ProcessGroup | None) -> Tensor:
    """`x`, equal on all ranks, for `layers`; the gradients of its uses are summed over the group."""
    if group is None or not can_overlap(x):
        return copy_to_group(x, group)
    return enter_region(x, layers, lambda whole: whole.view_as(whole), start_sum(group))


def gather_for_region(shard: Tensor, layers: Sequence[WeightTaker], group: dist.ProcessGroup) -> Tensor:
    """The whole of a sequence shard for `layers`; each rank gets its part of the sum of its uses' gradients."""
    if not can_overlap(shard):
        return gather_sequence(shard, group)
    return enter_region(shard, layers, lambda part: all_gather_sequence(part, group), start_sum_scatter(group))


def take_weight(layer: WeightTaker, x: Tensor) -> HandedWeight | None:
    """The weight for one forward pass of a layer with `x`; None: it is to use its own.

    A part that is computed again without its region makes one for itself, so that autograd saves the same tensors.
    """
    handed, layer.handed = layer.handed, None
    return handed if handed is not None or not can_overlap(x) else HandedWeight(layer.weight)


def can_overlap(x: Tensor) -> bool:
    """Whether a backward pass is to come; under autocast each operation casts for itself, and weights are shared."""
    if x.is_meta or not (torch.is_grad_enabled() and x.requires_grad):  # autocast does not know the meta device
        return False
    return not torch.is_autocast_enabled(x.device.type)


def start_sum(group: dist.ProcessGroup) -> Start:
    """The sum over the group, of a gradient that may be shared with another branch of the graph."""

    def start(gradient: Tensor) -> Finish:
        summed = gradient.clone(memory_format=torch.contiguous_format)
        work = dist.all_reduce(summed, group=group, async_op=True)

        def finish() -> Tensor:
            work.wait()
            return summed

        return finish

    return start


def start_sum_scatter(group: dist.ProcessGroup) -> Start:
    """This rank's part of dim 1 of the sum over the group, of [B, S, D]."""

    def start(gradient: Tensor) -> Finish:
        whole_SBD = gradient.transpose(0, 1).contiguous()
        part_SBD = whole_SBD.new_empty(whole_SBD.shape[0] // group.size(), *whole_SBD.shape[1:])
        work = dist.reduce_scatter_single(part_SBD, whole_SBD, group=group, async_op=True)

        def finish() -> Tensor:
            work.wait()
            return part_SBD.transpose(0, 1).contiguous()

        return finish

    return start


class _Pending:
    """A message under way."""

    finish: Finish


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor], start: Start, pending: _Pending) -> Tensor:
        ctx.start, ctx.pending, ctx.stand_in = start, pending, stand_in(x)
        return change(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.pending.finish = ctx.start(gradient)
        return ctx.stand_in, None, None, None


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pending: _Pending) -> Tensor:
        ctx.pending = pending
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        gradient = ctx.pending.finish()
        del ctx.pending.finish
        return gradient, None
