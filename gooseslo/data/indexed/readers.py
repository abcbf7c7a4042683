"""Three ways to read the tokens of a prepared data set; equal results, whichever is chosen.

`mmap` maps the file: the system reads what is touched and keeps what fits. `lazy` reads each stretch when it is asked
for: for file systems on which mapping is slow. `cached` reads everything at open: for small sets.
"""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import overload

import numpy as np

from gooseslo.data.indexed.layout import read_index
from gooseslo.data.indexed.names import bin_path
from gooseslo.errors import DataError


class IndexedReader(ABC):
    """Sequences of tokens, gathered in documents. It can be pickled: it is opened anew where it arrives."""

    def __init__(self, prefix: Path):
        """Raises DataError for files that are not there, not whole or not of this layout."""
        self.prefix = prefix
        index = read_index(prefix)
        self.dtype = index.dtype
        self.sizes = index.sizes
        """Integers [N]: tokens of each sequence."""
        self.doc_idx = index.doc_idx
        """int64 [D + 1]: document d is the sequences doc_idx[d] to doc_idx[d + 1]."""
        self.num_tokens = index.num_tokens
        self._starts: np.ndarray | None = None
        self._path = bin_path(prefix)
        try:
            self._open()
        except OSError as error:
            raise DataError(f"{self._path}: cannot be read: {error.strerror}") from error

    def __reduce__(self) -> tuple[type, tuple[Path]]:
        return type(self), (self.prefix,)

    @property
    def num_documents(self) -> int:
        return len(self.doc_idx) - 1

    def __len__(self) -> int:
        """Sequences."""
        return len(self.sizes)

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, index: slice) -> list[np.ndarray]: ...

    def __getitem__(self, index: int | slice) -> np.ndarray | list[np.ndarray]:
        """The tokens of a sequence, or a list of those of several."""
        if isinstance(index, slice):
            return [self.get(number) for number in range(*index.indices(len(self)))]
        return self.get(index)

    def get(self, index: int, offset: int = 0, length: int | None = None) -> np.ndarray:
        """`length` tokens (None: all) of a sequence from `offset` on; IndexError for what it does not have."""
        index = index + len(self) if index < 0 else index
        if not 0 <= index < len(self):
            raise IndexError(f"sequence {index} of {len(self)}")
        size = int(self.sizes[index])
        count = size - offset if length is None else length
        if not 0 <= offset <= offset + count <= size:
            raise IndexError(f"tokens {offset} to {offset + count} of a sequence of {size}")
        return self._read(int(self._sequence_starts()[index]) + offset, count)

    def tokens(self, start: int, count: int) -> np.ndarray:
        """`count` tokens from position `start` of the whole file, in which sequences lie one after the other."""
        if not 0 <= start <= start + count <= self.num_tokens:
            raise IndexError(f"tokens {start} to {start + count} of {self.num_tokens}")
        return self._read(start, count)

    def document_starts(self) -> np.ndarray:
        """int64 [D + 1]: the position of each document's first token; the last is the number of tokens."""
        return self._sequence_starts()[self.doc_idx]

    def prefetch(self, indices: Iterable[int]) -> None:  # noqa: B027  (a hint may be of no use)
        """A hint that these sequences will be read soon."""

    def _sequence_starts(self) -> np.ndarray:
        if self._starts is None:
            starts = np.zeros(len(self.sizes) + 1, dtype=np.int64)
            np.cumsum(self.sizes, out=starts[1:])
            self._starts = starts
        return self._starts

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _read(self, start: int, count: int) -> np.ndarray:
        """The tokens of a stretch that is there."""


class MmapReader(IndexedReader):
    """Samples are read in a shuffled order: reading ahead of them would bring in many times what is used."""

    def _open(self) -> None:
        self._map: mmap.mmap | None = None
        self._tokens = np.empty(0, dtype=self.dtype)
        if self.num_tokens:  # an empty file cannot be mapped
            with self._path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._map.madvise(mmap.MADV_RANDOM)
            self._tokens = np.frombuffer(self._map, dtype=self.dtype)

    def _read(self, start: int, count: int) -> np.ndarray:
        num_bytes = count * self.dtype.itemsize
        if num_bytes > mmap.PAGESIZE and self._map is not None:  # all of it at once, not page by page
            begin = start * self.dtype.itemsize // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, begin, num_bytes)
        return self._tokens[start : start + count]


class LazyReader(IndexedReader):
    def _open(self) -> None:
        self._file = self._path.open("rb", buffering=0)

    def _read(self, start: int, count: int) -> np.ndarray:
        """Bears forks and threads: no position is kept."""
        wanted, position = count * self.dtype.itemsize, start * self.dtype.itemsize
        parts = []
        while wanted:
            part = os.pread(self._file.fileno(), wanted, position)
            if not part:
                raise DataError(f"{self._path}: cut short while it was read")
            parts.append(part)
            wanted, position = wanted - len(part), position + len(part)
        return np.frombuffer(b"".join(parts), dtype=self.dtype)

    def prefetch(self, indices: Iterable[int]) -> None:
        starts, item = self._sequence_starts(), self.dtype.itemsize
        for index in indices:
            begin, end = int(starts[index]) * item, int(starts[index + 1]) * item
            os.posix_fadvise(self._file.fileno(), begin, end - begin, os.POSIX_FADV_WILLNEED)


class CachedReader(IndexedReader):
    def _open(self) -> None:
        self._tokens = np.fromfile(self._path, dtype=self.dtype)
        self._tokens.flags.writeable = False

    def _read(self, start: int, count: int) -> np.ndarray:
        return self._tokens[start : start + count]


READERS: dict[str, type[IndexedReader]] = {"mmap": MmapReader, "lazy": LazyReader, "cached": CachedReader}


def open_indexed(prefix: Path | str, reader: str = "mmap") -> IndexedReader:
    """Open PREFIX.bin and PREFIX.idx by one of READERS; DataError where they are not there, not whole or foreign."""
    if reader not in READERS:
        raise DataError(f"reader {reader}: no such reader\n  readers: {', '.join(READERS)}")
    return READERS[reader](Path(prefix))
