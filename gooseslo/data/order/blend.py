"""Several data sets as one, in turns by weight or by size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gooseslo.data.order.sample import Sample
from gooseslo.data.order.turns import Turns
from gooseslo.errors import DataError

_BLOCK = 1 << 16


class DatasetBlender:
    """Data sets in turns by weight, or by size where none are given; deterministic, without a seed.

    After any number of positions every set has had its share of them to within one sample. A set that is short for its
    weight is begun again when it is through, as often as need be; by size every sample comes once in `len()` positions.

    `blender[n]` is the sample at position n. Trainers number samples instead: `sample(number)`, where number
    i * len(datasets) + k is sample i of set k.
    """

    def __init__(self, datasets: Sequence[Any], weights: Sequence[float] | None = None):
        self.datasets = list(datasets)
        for index, dataset in enumerate(self.datasets):
            if isinstance(dataset, str | Path):
                raise DataError(
                    f"datasets[{index}]={str(dataset)!r}: a name, no data set\n  open it: DatasetForCausalLM"
                )
        self.sizes = [len(dataset) for dataset in self.datasets]
        self.turns = Turns(self.sizes if weights is None else weights)
        if len(self.turns.shares) != len(self.datasets):
            raise DataError(f"weights: {len(self.turns.shares)} of them for {len(self.datasets)} data sets")
        for index, (size, share) in enumerate(zip(self.sizes, self.turns.shares)):
            if share > 0 and size < 1:
                raise DataError(f"datasets[{index}]: has no sample, and a weight above 0")

    def __len__(self) -> int:
        return sum(self.sizes)

    @property
    def num_samples(self) -> int:
        return len(self)

    @property
    def sequence_length(self) -> int:
        """Of the first set; trainers blend sets of one length."""
        length: int = self.datasets[0].sequence_length
        return length

    def __getitem__(self, position: int) -> Any:
        """What the set whose turn it is gives for its next sample."""
        position = position + len(self) if position < 0 else position
        if not 0 <= position < len(self):
            raise IndexError(position)
        sets, positions = self.turns.locate(position, 1)
        dataset, number = self.datasets[sets[0]], int(positions[0])
        if hasattr(dataset, "example"):  # a new order of documents each time it is begun again
            return dataset.example(number)
        return dataset[number % len(dataset)]

    def sample(self, number: int) -> Sample:
        """Sample number // K of set number % K, of K sets."""
        index, dataset = divmod(number, len(self.datasets))
        sample: Sample = self.datasets[dataset].sample(index)
        return sample

    def turns_of_sets(self, num_positions: int) -> np.ndarray:
        """int64 [K]: how many of the first positions are each set's."""
        counts = np.zeros(len(self.datasets), dtype=np.int64)
        for start in range(0, num_positions, _BLOCK):
            sets, _ = self.turns.locate(start, min(_BLOCK, num_positions - start))
            counts += np.bincount(sets, minlength=len(counts))
        return counts

    def first_repeat(self, at_most: int) -> int:
        """The position at which, for the first time, a sample comes again; `at_most` if it is there or later."""
        sizes = np.array(self.sizes)
        for start in range(0, at_most, _BLOCK):
            sets, positions = self.turns.locate(start, min(_BLOCK, at_most - start))
            again = np.flatnonzero(positions >= sizes[sets])
            if len(again):
                return start + int(again[0])
        return at_most
