"""Where a stage's hidden states become sequence shards and whole again: at its first and its last block.

The base model's own forward makes masks and positions from the shape of what it is given, so it must see the whole
length. Between stages shards travel, a tp-th of the message; a stand-in of the whole shape, one zero expanded, goes
through the base model's code up to the first block and after the last.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from gooseslo.parallel.collectives import cut_sequence, join_sequence
from gooseslo.parallel.tensor.regions import on_input


class SequenceShards:
    """The shards of one stage; forward and backward are collective over the tp group on the first and last stage."""

    def __init__(
        self, first_block: nn.Module, last_block: nn.Module, *, group: dist.ProcessGroup, is_first: bool, is_last: bool
    ):
        self._group = group
        self._is_first, self._is_last = is_first, is_last
        self._incoming: Tensor | None = None
        self._outgoing: Tensor | None = None
        on_input(first_block, self._enter)
        last_block.register_forward_hook(self._leave)

    def receive(self, shard_BTD: Tensor) -> Tensor:
        """Keep another stage's shard for the first block; give what stands for the whole until then."""
        self._incoming = shard_BTD
        return self._stand_in(shard_BTD)

    def send(self) -> Tensor:
        """The last block's shard, for the next stage."""
        assert self._outgoing is not None
        shard_BTD, self._outgoing = self._outgoing, None
        return shard_BTD

    def _enter(self, hidden_BSD: Tensor) -> Tensor:
        if self._is_first:
            return cut_sequence(hidden_BSD, self._group)
        assert self._incoming is not None
        shard_BTD, self._incoming = self._incoming, None
        return shard_BTD

    def _leave(self, module: nn.Module, args: Any, hidden_BTD: Tensor) -> Tensor:
        if self._is_last:
            return join_sequence(hidden_BTD, self._group)
        self._outgoing = hidden_BTD
        return self._stand_in(hidden_BTD)

    def _stand_in(self, shard_BTD: Tensor) -> Tensor:
        batch, part, width = shard_BTD.shape
        return shard_BTD.new_zeros(()).expand(batch, part * self._group.size(), width)
