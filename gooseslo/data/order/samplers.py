"""Samplers for one's own training loop with torch's DataLoader; `gooseslo train` has an order of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from gooseslo.data.text.packed import random_words
from gooseslo.errors import DataError


class DistributedProxySampler(Sampler[int]):
    """Shares the indices of any sampler out among replicas: rank r takes every num_replicas-th from the r-th on.

    Each pass is an epoch: the sampler is asked anew, its indices are shuffled by (seed, epoch) where `shuffle` asks for
    it, and filled up from their beginning to a multiple of the replicas, or cut down to one (`drop_last`). All replicas
    see the same indices: a sampler that draws from torch's global generator finds it seeded by (seed, epoch) too, and
    as it was afterwards.

    `set_epoch` chooses the epoch of the next pass; without it (and without `InfiniteDataLoader`) all passes are alike.
    """

    def __init__(
        self,
        sampler: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ):
        """`num_replicas` and `rank` None: those of the default process group, or 1 and 0 without one."""
        grouped = dist.is_available() and dist.is_initialized()
        self.num_replicas = num_replicas if num_replicas is not None else dist.get_world_size() if grouped else 1
        self.rank = rank if rank is not None else dist.get_rank() if grouped else 0
        if not 0 <= self.rank < self.num_replicas:
            raise DataError(f"rank={self.rank}: must be from 0 to num_replicas - 1 = {self.num_replicas - 1}")
        self.sampler, self.shuffle, self.seed, self.drop_last = sampler, shuffle, seed, drop_last
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next pass, of the sampler below too if it has epochs."""
        self.epoch = epoch
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        """Indices of this replica in a pass."""
        return self._share(len(self.sampler))

    def __iter__(self) -> Iterator[int]:
        before = torch.get_rng_state()
        try:
            # The CPU's generator alone: torch.manual_seed would set those of the devices too.
            torch.default_generator.manual_seed(int(random_words((4, self.seed, self.epoch), 1)[0]) >> 1)
            indices = list(self.sampler)
        finally:
            torch.set_rng_state(before)
        if self.shuffle:
            words = random_words((5, self.seed, self.epoch), len(indices))
            indices = [indices[place] for place in np.argsort(words, kind="stable")]
        taken = self._share(len(indices)) * self.num_replicas if indices else 0
        return (indices[place % len(indices)] for place in range(self.rank, taken, self.num_replicas))

    def _share(self, num_indices: int) -> int:
        return num_indices // self.num_replicas if self.drop_last else -(-num_indices // self.num_replicas)


class InfiniteDataLoader:
    """Batches of a DataLoader without end. Each pass is the next epoch for whatever in it has a `set_epoch`."""

    def __init__(self, dataloader: Any, epoch: int = 0):
        """`epoch`: of the first pass, for a run that goes on."""
        self.dataloader, self.epoch = dataloader, epoch
        self._pass: Iterator[Any] | None = None

    def __len__(self) -> int:
        """Batches of one pass."""
        return len(self.dataloader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._pass is not None:
            for batch in self._pass:
                return batch
            self.epoch += 1
        self._begin()
        assert self._pass is not None
        for batch in self._pass:
            return batch
        self._pass = None
        raise DataError("the data loader gives no batch: a pass over it would never end")

    def _begin(self) -> None:
        batches = getattr(self.dataloader, "batch_sampler", None)
        for part in (getattr(self.dataloader, "sampler", None), batches, getattr(batches, "sampler", None)):
            if part is not None and hasattr(part, "set_epoch"):
                part.set_epoch(self.epoch)
        self._pass = iter(self.dataloader)
