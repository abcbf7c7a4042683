"""Sums that are shared out over a group, and shares that are gathered, begun now and waited for later.

NCCL has a collective for each. gloo's reduce-scatter is an all-reduce of a copy, most of which is thrown away, and its
all-gather copies once more; between CPUs the ranks send each other shards instead, the least that has to travel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class Travelling(Protocol):
    def wait(self) -> object:
        """The result is there when this returns; on CUDA, to what is queued after it."""


def begin_reduce_scatter(whole: Tensor, group: dist.ProcessGroup) -> Travelling:
    """Sum `whole` [n x s] over the group's n ranks, each into its own shard [s] of it; collective over the group.

    The other shards are left as they are. The sum is in an order of its own on each rank: where equal shards are to
    give equal sums, the rank has the same place in each group.
    """
    own, others = _shards(whole, group)
    if whole.device.type != "cpu":
        work: Travelling = dist.reduce_scatter_single(own, whole, group=group, async_op=True)
        return work
    received = {rank: torch.empty_like(own) for rank in others}
    return _Messages(group, sent=others, received=received, then=own.add_)


def begin_all_gather(whole: Tensor, group: dist.ProcessGroup) -> Travelling:
    """Fill `whole` [n x s] with the shard [s] of each of the group's n ranks; collective over the group."""
    own, others = _shards(whole, group)
    if whole.device.type != "cpu":
        work: Travelling = dist.all_gather_single(whole, own, group=group, async_op=True)
        return work
    return _Messages(group, sent=dict.fromkeys(others, own), received=others)


def _shards(whole: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, dict[int, Tensor]]:
    """This rank's shard, and those of the others by their rank in the group."""
    shards = dict(enumerate(whole.chunk(group.size())))
    return shards.pop(group.rank()), shards


class _Messages:
    """One to and one from every other rank of a group."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        *,
        sent: dict[int, Tensor],
        received: dict[int, Tensor],
        then: Callable[[Tensor], object] = lambda tensor: None,
    ):
        """`then` is called with each received tensor in the order of ranks."""
        self._received, self._then = received, then
        self._receives = {rank: dist.irecv(tensor, group=group, group_src=rank) for rank, tensor in received.items()}
        self._sends = [dist.isend(tensor, group=group, group_dst=rank) for rank, tensor in sent.items()]

    def wait(self) -> None:
        for rank, work in self._receives.items():
            assert work is not None
            work.wait()
            self._then(self._received[rank])
        for send in self._sends:
            assert send is not None
            send.wait()
