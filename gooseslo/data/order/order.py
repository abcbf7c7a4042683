"""Which sample comes when: a function of the seed and the position alone, so that any layout and any restart agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from gooseslo.data.order.blend import DatasetBlender
from gooseslo.data.text.packed import Dataset, random_words


class Order(Protocol):
    """Numbers of samples by position; positions go on for ever."""

    def samples(self, start: int, count: int) -> np.ndarray:
        """int64 [count]: the samples at positions start ... start + count - 1; may span epochs."""


def training_order(dataset: Dataset, *, seed: int) -> Order:
    """Every epoch shuffled anew; of a blend each set for itself, so that every prefix holds its share of each."""
    if isinstance(dataset, DatasetBlender):
        orders = [SampleOrder(num_samples=n, seed=seed, stream=k) for k, n in enumerate(dataset.sizes)]
        return BlendedOrder(dataset, orders)
    return SampleOrder(num_samples=dataset.num_samples, seed=seed)


def evaluation_order(dataset: Dataset) -> Order:
    """As the samples are numbered; of a blend each set for itself, in turns."""
    if isinstance(dataset, DatasetBlender):
        return BlendedOrder(dataset, [FileOrder()] * len(dataset.sizes))
    return FileOrder()


def num_distinct(dataset: Dataset, *, at_most: int) -> int:
    """So many positions, from 0 on, have no sample twice: all of a set, a blend up to where one of its begins again."""
    if isinstance(dataset, DatasetBlender):
        return dataset.first_repeat(at_most)
    return min(dataset.num_samples, at_most)


class SampleOrder:
    """A new permutation of all samples every epoch, drawn from (seed, epoch, stream): numbers epoch * n + sample."""

    def __init__(self, *, num_samples: int, seed: int, stream: int = 0):
        assert num_samples > 0
        self.num_samples = num_samples
        self._seed, self._stream = seed, stream
        self._recent: tuple[tuple[int, np.ndarray], ...] = ()

    def samples(self, start: int, count: int) -> np.ndarray:
        """int64 [count]: the samples at positions start ... start + count - 1; may span epochs."""
        parts = []
        position = start
        while position < start + count:
            epoch, offset = divmod(position, self.num_samples)
            taken = min(self.num_samples - offset, start + count - position)
            parts.append(self._permutation(epoch)[offset : offset + taken] + epoch * self.num_samples)
            position += taken
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _permutation(self, epoch: int) -> np.ndarray:
        for drawn, permutation in self._recent:
            if drawn == epoch:
                return permutation
        further = (self._stream,) if self._stream else ()
        words = random_words((0, self._seed, epoch, *further), self.num_samples)
        permutation = np.argsort(words, kind="stable")
        # Two, since threads that read ahead are on both sides of an epoch's border for a while. Replaced as a whole:
        # several may ask at once.
        self._recent = ((epoch, permutation), *self._recent[:1])
        return permutation


class FileOrder:
    """As the samples are numbered."""

    def samples(self, start: int, count: int) -> np.ndarray:
        """int64 [count]: the positions themselves."""
        return np.arange(start, start + count)


class BlendedOrder:
    """Sets in turns, each by its own order; numbers as `DatasetBlender.sample` takes them."""

    def __init__(self, dataset: DatasetBlender, orders: Sequence[Order]):
        self._dataset, self._orders = dataset, orders

    def samples(self, start: int, count: int) -> np.ndarray:
        """int64 [count]: sample i of set k is i * K + k, of K sets."""
        sets, positions = self._dataset.turns.locate(start, count)
        numbers = np.empty(count, dtype=np.int64)
        for index in np.unique(sets):
            mine = np.flatnonzero(sets == index)  # a set's turns in a stretch are successive positions of its own
            numbers[mine] = self._orders[index].samples(int(positions[mine[0]]), len(mine))
        return numbers * len(self._orders) + sets
