"""Samplers for one's own training loop with torch's DataLoader; `gooseslo train` has an order of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from gooseslo.data.text.packed import random_words
from gooseslo.errors import DataError

_BLOCK = 1 << 16


class DistributedProxySampler(Sampler[Any]):
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
        self.epoch = self._offset = 0

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next pass, of the sampler below too if it has epochs."""
        self.epoch = epoch
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        """Indices of this replica in a pass."""
        return self._share(len(self.sampler))

    def start_at(self, offset: int) -> None:
        """Let the next pass, and only that, leave out the first `offset` indices of the epoch's order.

        All replicas count together, so how many they are may change in the middle of an epoch.
        """
        self._offset = offset

    def __iter__(self) -> Iterator[Any]:
        offset, self._offset = self._offset, 0
        before = torch.get_rng_state()
        try:
            # The CPU's generator alone: torch.manual_seed would set those of the devices too.
            torch.default_generator.manual_seed(int(random_words((4, self.seed, self.epoch), 1)[0]) >> 1)
            indices = _as_array(self.sampler)
        finally:
            torch.set_rng_state(before)
        if not len(indices):
            return iter(())
        places = np.arange(self.rank, self._share(max(0, len(indices) - offset)) * self.num_replicas, self.num_replicas)
        places = (places + offset) % len(indices)
        if self.shuffle:
            places = np.argsort(random_words((5, self.seed, self.epoch), len(indices)), kind="stable")[places]
        return _items(indices[places])

    def _share(self, num_indices: int) -> int:
        return num_indices // self.num_replicas if self.drop_last else -(-num_indices // self.num_replicas)


def _as_array(sampler: Iterable[Any]) -> np.ndarray:
    """The indices of a pass: 8 bytes each, or objects where they are no numbers, as those of a sampler of batches."""
    indices = iter(sampler)
    first = next(indices, None)
    if first is None:
        return np.empty(0, dtype=np.int64)
    kind = np.int64 if isinstance(first, int | np.integer) else object
    return np.fromiter(itertools.chain([first], indices), dtype=kind)


def _items(array: np.ndarray) -> Iterator[Any]:
    """As Python has them, a block at a time: a list of all of them would take four times the memory."""
    for begin in range(0, len(array), _BLOCK):
        yield from array[begin : begin + _BLOCK].tolist()


class InfiniteDataLoader:
    """Batches of a DataLoader without end. Each pass is the next epoch for whatever in it has a `set_epoch`.

    With a `DistributedProxySampler` in it, `consumed_samples` says where all replicas together stand, and the loader of
    a later run goes on from there, with as many replicas and as large batches as it likes: the order of an epoch
    depends on seed and epoch alone. Indices that fill an epoch up are not counted. (What `drop_last` leaves out depends
    on the layout by its nature.)
    """

    def __init__(self, dataloader: Any, epoch: int = 0, consumed_samples: int = 0):
        """`epoch`: of the first pass; or `consumed_samples`: where a run goes on, also within an epoch."""
        self.dataloader, self.epoch = dataloader, epoch
        self._offset = 0
        self._pass: Iterator[Any] | None = None
        if consumed_samples < 0:
            raise DataError(f"consumed_samples={consumed_samples}: must be at least 0")
        if consumed_samples:
            if epoch:
                raise DataError(f"epoch={epoch}, consumed_samples={consumed_samples}: give one of the two")
            self.epoch, self._offset = divmod(consumed_samples, max(1, len(self._proxy().sampler)))

    @property
    def consumed_samples(self) -> int:
        """Samples that all replicas together were given, over all epochs."""
        num_samples = len(self._proxy().sampler)
        return self.epoch * num_samples + min(self._offset, num_samples)

    def __len__(self) -> int:
        """Batches of one pass."""
        return len(self.dataloader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            from_its_beginning = self._pass is None and not self._offset
            if self._pass is None:
                self._pass = self._begin()
            for batch in self._pass:
                self._offset += self._batch_size()
                return batch
            self._pass = None
            if from_its_beginning:
                raise DataError("the data loader gives no batch: a pass over it would never end")
            self.epoch, self._offset = self.epoch + 1, 0

    def _begin(self) -> Iterator[Any]:
        for part in self._samplers():
            if hasattr(part, "set_epoch"):
                part.set_epoch(self.epoch)
            if isinstance(part, DistributedProxySampler):
                part.start_at(self._offset)
        return iter(self.dataloader)

    def _samplers(self) -> list[Any]:
        batches = getattr(self.dataloader, "batch_sampler", None)
        return [getattr(self.dataloader, "sampler", None), batches, getattr(batches, "sampler", None)]

    def _proxy(self) -> DistributedProxySampler:
        for part in self._samplers():
            if isinstance(part, DistributedProxySampler):
                return part
        raise DataError("consumed_samples: only a loader with a DistributedProxySampler can go on within an epoch")

    def _batch_size(self) -> int:
        """Samples of a full batch of all replicas together; the epoch's end cuts off what a smaller last one lacks."""
        parts = (self.dataloader, getattr(self.dataloader, "batch_sampler", None))
        size = next((size for part in parts if (size := getattr(part, "batch_size", None))), 1)
        return size * next((part.num_replicas for part in self._samplers() if hasattr(part, "num_replicas")), 1)
