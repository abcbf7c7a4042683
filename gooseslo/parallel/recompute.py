"""Activation checkpointing: parts of a stage that keep their input alone, and are computed again in the backward pass.

Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016); of the attention alone: Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models" (2022), section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gooseslo.policies.policy import Policy


def attach_recomputation(model: nn.Module, policy: Policy, parts: str | int) -> int:
    """Let these parts of a stage be computed again: none, full (each block), selective (attention), every n-th block.

    How many they are. Dropout draws the same again, since it is seeded by its place; collectives of a part run again,
    on all tp ranks alike.
    """
    if parts == "none":
        return 0
    chosen = list(_chosen(model, policy, parts))
    for module in chosen:
        module.forward = _recomputed(module.forward)  # type: ignore[method-assign]
    return len(chosen)


def _chosen(model: nn.Module, policy: Policy, parts: str | int) -> Iterator[nn.Module]:
    for index, block in model.get_submodule(policy.layers).named_children():
        if parts == "selective":
            yield block.get_submodule(policy.attention)
        elif parts == "full" or int(index) % int(parts) == 0:
            yield block


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        # Not the reentrant kind: a backward pass that is split asks for gradients of inputs alone, which that refuses.
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return run
