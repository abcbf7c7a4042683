"""Samples of equal length: a split's tokens cut one after the other, or random tokens for timing and tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from gooseslo.errors import DataError


class Dataset(Protocol):
    """Samples by number; each has one token more than the model reads, so that its last input has a label too."""

    @property
    def num_samples(self) -> int: ...

    @property
    def sequence_length(self) -> int: ...

    def __getitem__(self, index: int) -> torch.Tensor:
        """int64 [sequence_length + 1]."""


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

    The tail that fills no sample is dropped. DataError if there is no sample at all.
    """

    def __init__(self, tokens: np.ndarray, sequence_length: int, *, split: str = "train"):
        self.tokens = tokens
        self.sequence_length = sequence_length
        self.num_samples = (len(tokens) - 1) // sequence_length
        if self.num_samples < 1:
            raise DataError(
                f"data.{split}: its {len(tokens)} tokens are less than one sample: train.sequence_length="
                f"{sequence_length} needs {sequence_length + 1}\n  give more text or a shorter sequence"
            )

    @classmethod
    def open(cls, file: TokenFile, *, split: str, sequence_length: int) -> PackedDataset:
        """Over a file that stays on the disk; every process opens it anew."""
        tokens = np.memmap(file.path, dtype=file.dtype, mode="r", shape=(file.num_tokens,))
        return cls(tokens, sequence_length, split=split)

    def __getitem__(self, index: int) -> torch.Tensor:
        """int64 [sequence_length + 1]."""
        if not 0 <= index < self.num_samples:
            raise IndexError(index)
        start = index * self.sequence_length
        return torch.from_numpy(self.tokens[start : start + self.sequence_length + 1].astype(np.int64))


class SyntheticDataset:
    """Uniform random tokens; a sample depends on the seed and its number alone."""

    def __init__(self, *, seed: int, vocab_size: int, num_samples: int, sequence_length: int):
        self.num_samples = num_samples
        self.sequence_length = sequence_length
        self._seed = seed
        self._vocab_size = vocab_size

    def __getitem__(self, index: int) -> torch.Tensor:
        """int64 [sequence_length + 1]."""
        if not 0 <= index < self.num_samples:
            raise IndexError(index)
        raw = random_words((1, self._seed, index), self.sequence_length + 1)
        return torch.from_numpy((raw % np.uint64(self._vocab_size)).astype(np.int64))


def random_words(key: tuple[int, ...], count: int) -> np.ndarray:
    """`count` random uint64 from a key of integers.

    Raw words, since these are the same in every release of numpy; its distributions and permutations may change.
    """
    seed = np.random.SeedSequence([part % (1 << 64) for part in key])
    return np.random.Philox(seed).random_raw(count)
