"""Samples of equal length: a split's tokens cut one after the other, or random tokens for timing and tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from gooseslo.data.order.sample import Sample, cut_sample
from gooseslo.errors import DataError


class Dataset(Protocol):
    """Samples by number, all of one length.

    Numbers go on over epochs: `number // num_samples` is the epoch.
    """

    @property
    def num_samples(self) -> int:
        """Of an epoch."""

    @property
    def sequence_length(self) -> int: ...

    def sample(self, number: int) -> Sample:
        """What the model reads and is to predict."""


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """A flat file of token ids."""

    path: Path
    dtype: str
    num_tokens: int

    @property
    def num_bytes(self) -> int:
        """Size that the file must have."""
        return self.num_tokens * np.dtype(self.dtype).itemsize


class PackedDataset:
    """Sample i is tokens[i S : i S + S + 1], so that every token but the first is predicted once an epoch.

    The tail that fills no sample is dropped. Every epoch has the same samples. DataError if there is none at all. With
    `document_end`, the id that ends each document, a sample's documents do not see each other.
    """

    def __init__(
        self, tokens: np.ndarray, sequence_length: int, *, split: str = "train", document_end: int | None = None
    ):
        self._tokens, self._document_end = tokens, document_end
        self.sequence_length = sequence_length
        self.num_samples = (len(tokens) - 1) // sequence_length
        if self.num_samples < 1:
            raise DataError(
                f"data.{split}: its {len(tokens)} tokens are less than one sample: train.sequence_length="
                f"{sequence_length} needs {sequence_length + 1}\n  give more text or a shorter sequence"
            )

    @classmethod
    def open(
        cls, file: TokenFile, *, split: str, sequence_length: int, document_end: int | None = None
    ) -> PackedDataset:
        """Over a file that stays on the disk; every process opens it anew."""
        tokens = np.memmap(file.path, dtype=file.dtype, mode="r", shape=(file.num_tokens,))
        return cls(tokens, sequence_length, split=split, document_end=document_end)

    def __len__(self) -> int:
        return self.num_samples

    def sample(self, number: int) -> Sample:
        """Of any epoch."""
        start = number % self.num_samples * self.sequence_length
        tokens = self._tokens[start : start + self.sequence_length + 1]
        if self._document_end is None:
            return cut_sample(tokens)
        return cut_sample(tokens, np.flatnonzero(tokens[:-1] == self._document_end) + 1)


class SyntheticDataset:
    """Uniform random tokens; a sample depends on the seed and its number in the epoch alone."""

    def __init__(self, *, seed: int, vocab_size: int, num_samples: int, sequence_length: int):
        self.num_samples = num_samples
        self.sequence_length = sequence_length
        self._seed = seed
        self._vocab_size = vocab_size

    def __len__(self) -> int:
        return self.num_samples

    def sample(self, number: int) -> Sample:
        """Of any epoch."""
        raw = random_words((1, self._seed, number % self.num_samples), self.sequence_length + 1)
        return cut_sample(raw % np.uint64(self._vocab_size))


def random_words(key: tuple[int, ...], count: int) -> np.ndarray:
    """`count` random uint64 from a key of integers.

    Raw words, since these are the same in every release of numpy; its distributions and permutations may change.
    """
    seed = np.random.SeedSequence([part % (1 << 64) for part in key])
    return np.random.Philox(seed).random_raw(count)
