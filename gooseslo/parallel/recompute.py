"""Activation checkpointing: parts of a stage that keep their input alone, and are computed again in the backward pass.

Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016); of the attention alone: Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models" (2022), section 5.

torch.utils.checkpoint forgets what it computed again with each call of autograd. A backward pass that is split into
inputs and weights calls it several times, and would compute a block up to seven times. Nor can it begin before the
backward pass, as a stage does whose gradient is still on its way from the next one: torchgpipe's idea (Kim et al.,
arXiv:2004.09910, section 3.2).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from gooseslo.policies.policy import Policy

Around = Callable[[], AbstractContextManager[None]]


class Recomputation:
    """The parts of a stage that are computed again, and their calls that wait for a backward pass."""

    def __init__(self, modules: Iterable[nn.Module], *, around: Around, micro_batch: Callable[[], int]):
        """`around` is entered while a part is computed again; `micro_batch` tells which one is being computed."""
        self._around, self._micro_batch = around, micro_batch
        self._calls = weakref.WeakValueDictionary[tuple[int, int], _Call]()
        """By micro-batch and part; autograd alone keeps them."""
        self.num_parts = 0
        for self.num_parts, module in enumerate(modules, start=1):
            module.forward = self._recomputed(module.forward, self.num_parts)  # type: ignore[method-assign]

    def ahead(self, micro_batch: int, *, parts: int) -> None:
        """Compute the last `parts` of a micro-batch again before its backward pass, which asks for these first.

        Collectives of a part run, so all tp ranks must call this alike.
        """
        for part in range(self.num_parts, max(0, self.num_parts - parts), -1):
            call = self._calls.get((micro_batch, part))
            if call is not None:
                call.compute()

    def _recomputed(self, forward: Callable[..., Any], part: int) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            call = _Call(forward, args, kwargs, self._around)
            self._calls[self._micro_batch(), part] = call
            with saved_tensors_hooks(call.pack, call.unpack):
                return forward(*args, **kwargs)

        return run


def attach_recomputation(
    model: nn.Module, policy: Policy, parts: str | int, *, around: Around, micro_batch: Callable[[], int]
) -> Recomputation:
    """Let these parts of a stage be computed again: none, full (each block), selective (attention), every n-th block.

    Dropout draws the same again, since it is seeded by its place; collectives of a part run again, on all tp ranks
    alike.
    """
    return Recomputation(recomputed_parts(model, policy, parts), around=around, micro_batch=micro_batch)


def recomputed_parts(model: nn.Module, policy: Policy, parts: str | int) -> Iterator[nn.Module]:
    """The modules of a stage that are computed again."""
    if parts == "none":
        return
    for index, block in model.get_submodule(policy.layers).named_children():
        if parts == "selective":
            yield block.get_submodule(policy.attention)
        elif parts == "full" or int(index) % int(parts) == 0:
            yield block


class _Call:
    """One forward pass of a part. Autograd gets numbers for the tensors it saves; the first that it asks for computes
    them all, and they stay until autograd has let go of every number."""

    def __init__(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], around: Around):
        self._forward, self._args, self._kwargs, self._around = forward, args, kwargs, around
        # As they are now: the runtime detaches a stage's output in place when it has been sent.
        self._want_grad = [isinstance(arg, Tensor) and arg.requires_grad for arg in args]
        device = next((arg.device.type for arg in args if isinstance(arg, Tensor)), "cpu")
        self._autocast = functools.partial(
            torch.autocast,
            device,
            enabled=torch.is_autocast_enabled(device),
            dtype=torch.get_autocast_dtype(device),
            cache_enabled=torch.is_autocast_cache_enabled(),
        )
        self._num_saved = 0
        self._saved: list[Tensor] | None = None

    def pack(self, tensor: Tensor) -> tuple[_Call, int]:
        number, self._num_saved = self._num_saved, self._num_saved + 1
        return self, number

    @staticmethod
    def unpack(packed: tuple[_Call, int]) -> Tensor:
        call, number = packed
        return call.compute()[number]

    def compute(self) -> list[Tensor]:
        """What was saved for the backward pass, computed once."""
        if self._saved is None:
            self._saved = self._compute()
        return self._saved

    def _compute(self) -> list[Tensor]:
        saved: list[Tensor] = []

        def keep(tensor: Tensor) -> None:
            saved.append(tensor.detach())

        def never(packed: None) -> Tensor:
            raise AssertionError("no backward pass goes through what was computed again")

        args = [
            arg.detach().requires_grad_(wants) if isinstance(arg, Tensor) else arg
            for arg, wants in zip(self._args, self._want_grad, strict=True)
        ]
        with self._around(), torch.enable_grad(), self._autocast(), saved_tensors_hooks(keep, never):
            self._forward(*args, **self._kwargs)
        assert len(saved) == self._num_saved, f"{len(saved)} tensors were saved again, {self._num_saved} before"
        return saved
