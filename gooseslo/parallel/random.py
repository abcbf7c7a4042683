"""Counter-based random streams: what dropout draws depends on where and when, never on the layout or the past.

Before a module draws, torch's generator is seeded from (run seed, step, global micro-batch, module name, and the tp
rank where the ranks' parts differ). Recomputation, resuming, and other pp and dp sizes then draw the same masks, and
no generator state needs saving. Replicated activations get one mask in a tp group; sharded ones (attention weights)
get a mask per rank.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from any mix of integers and names; equal on every machine."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


class RandomStreams:
    """Holds the position (step and global micro-batch) that this rank is computing, and seeds by it."""

    def __init__(self, run_seed: int, tp_rank: int = 0):
        self.run_seed = run_seed
        self.tp_rank = tp_rank
        self.step = 0
        self.micro_batch = 0

    def seed(self, name: str, *, split: bool) -> None:
        """Seed torch's generators for the draw of module `name`; `split`: differently on each tp rank."""
        rank = self.tp_rank if split else -1
        seed = derive_seed(self.run_seed, "dropout", self.step, self.micro_batch, name, rank)
        # Not torch.manual_seed: without CUDA it keeps a stack trace of every call, which takes milliseconds.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed(seed)

    def attach(self, module: nn.Module, name: str, *, split: bool) -> None:
        """Seed before each training forward of `module`; not by a hook, which recomputation would pass by."""
        forward = module.forward

        def seeded(*args: Any, **kwargs: Any) -> Any:
            if module.training:
                self.seed(name, split=split)
            return forward(*args, **kwargs)

        module.forward = seeded  # type: ignore[method-assign]
