"""A linear map that leaves the gradient of its weight to a node of its own, to be computed when nothing is urgent.

Schedules that split the backward pass ask for the input's gradients first and for the weights' later: what is asked for
is computed, so nothing twice. Views stand between the map and the leaves, of which autograd cannot be asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def project(x: Tensor, weight: Tensor, bias: Tensor | None, *, transposed: bool) -> Tensor:
    """A linear map with the weight in either orientation: [O, I], or [I, O] where `transposed`."""
    if not transposed:
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    out = rows @ weight if bias is None else torch.addmm(bias, rows, weight)
    return out.view(*x.shape[:-1], weight.shape[1])


class HandedWeight:
    """A layer's weight for one use, made before its input: of nodes that are ready autograd runs the newest first."""

    def __init__(self, weight: nn.Parameter):
        self.compute: Callable[[], Tensor] | None = None
        """The weight's gradient, once the output's is known."""
        self.tensor: Tensor = _Weight.apply(weight, self)


def linear(x: Tensor, weight: HandedWeight, bias: nn.Parameter | None, *, transposed: bool) -> Tensor:
    """`project`, once for each weight that is handed over."""
    out: Tensor = _Linear.apply(x, weight.tensor, None if bias is None else bias.view_as(bias), weight, transposed)
    return out


class _Weight(torch.autograd.Function):
    """The weight; backward its gradient."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, handed: HandedWeight) -> Tensor:
        ctx.handed = handed
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        gradient = ctx.handed.compute()
        ctx.handed.compute = None  # it holds the activations
        return gradient, None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, handed: HandedWeight, transposed: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.handed, ctx.transposed = handed, transposed
        return project(x, weight, bias, transposed=transposed)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        asked = [_is_asked(node) for node, _ in ctx.next_functions]
        rows = gradient.reshape(-1, gradient.shape[-1])
        for_input = for_weight = for_bias = None
        if asked[0]:
            for_input = (rows @ (weight.t() if ctx.transposed else weight)).view(x.shape)
        if asked[1]:
            transposed = ctx.transposed

            def compute() -> Tensor:
                inputs = x.reshape(-1, x.shape[-1])
                return inputs.t() @ rows if transposed else rows.t() @ inputs

            ctx.handed.compute = compute
            for_weight = stand_in(weight)
        if len(asked) > 2 and asked[2]:
            for_bias = rows.sum(0)
        return for_input, for_weight, for_bias, None, None


def stand_in(tensor: Tensor) -> Tensor:
    """In place of a gradient that comes another way: of its shape, without its memory."""
    return torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)


def _is_asked(node: Any) -> bool:
    """Whether the backward pass that is running wants the gradient that goes to this node."""
    return node is not None and bool(torch._C._will_engine_execute_node(node))  # type: ignore[attr-defined]
