"""Activation checkpointing: parts of a stage that keep their input alone, and are computed again in the backward pass.

Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016); of the attention alone: Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models" (2022), section 5.

torch.utils.checkpoint forgets what it computed again with each call of autograd. A backward pass that is split into
inputs and weights calls it several times, and would compute a block up to seven times.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from gooseslo.policies.policy import Policy

Around = Callable[[], AbstractContextManager[None]]


def attach_recomputation(model: nn.Module, policy: Policy, parts: str | int, *, around: Around) -> int:
    """Let these parts of a stage be computed again: none, full (each block), selective (attention), every n-th block.

    How many they are. `around` is entered while a part is computed again. Dropout draws the same again, since it is
    seeded by its place; collectives of a part run again, on all tp ranks alike.
    """
    chosen = list(recomputed_parts(model, policy, parts))
    for module in chosen:
        module.forward = _recomputed(module.forward, around)  # type: ignore[method-assign]
    return len(chosen)


def recomputed_parts(model: nn.Module, policy: Policy, parts: str | int) -> Iterator[nn.Module]:
    """The modules of a stage that are computed again."""
    if parts == "none":
        return
    for index, block in model.get_submodule(policy.layers).named_children():
        if parts == "selective":
            yield block.get_submodule(policy.attention)
        elif parts == "full" or int(index) % int(parts) == 0:
            yield block


def _recomputed(forward: Callable[..., Any], around: Around) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        call = _Call(forward, args, kwargs, around)
        with saved_tensors_hooks(call.pack, call.unpack):
            return forward(*args, **kwargs)

    return run


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
        if call._saved is None:
            call._saved = call._compute()
        return call._saved[number]

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
