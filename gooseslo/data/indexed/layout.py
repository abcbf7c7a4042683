"""The index file PREFIX.idx, which says where in PREFIX.bin each sequence and each document lies.

The layout is that of Megatron-LM (`MMIDIDX`, little-endian), which GPT-NeoX, fairseq and OSLO's `mmap` share:

    offset  type          meaning
    0       9 bytes       magic "MMIDIDX\\0\\0"
    9       u64           version, 1
    17      u8            code of the token type
    18      u64           number of sequences N
    26      u64           length of the document index D + 1
    34      i32 [N]       tokens of each sequence
    34+4N   i64 [N]       byte position of each sequence in the .bin
    34+12N  i64 [D + 1]   the sequence at which each document begins; the last is N

Older files of fairseq (`TNTIDX`, OSLO's `lazy` and `cached`) are read, not written: a header of 56 bytes (magic of 8,
then as u64 version, code, item size, N, length of the sizes, length of the document index), then as i64 the positions
of the sizes [N + 1], the positions of the tokens [N + 1], the sizes [N], the document index.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from gooseslo.data.indexed.names import bin_path, idx_path
from gooseslo.errors import DataError

MAGIC = b"MMIDIDX\0\0"
_OLD_MAGIC = b"TNTIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
_OLD_HEADER = struct.Struct("<8sQQQQQQ")
_CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOAT_CODES = {6: "float32", 7: "float64"}
_BLOCK = 1 << 20
"""Entries that are looked at or written at a time, so that memory stays bounded for any number of sequences."""


@dataclass(frozen=True, kw_only=True)
class IndexArrays:
    """What an index file holds; the arrays are mapped from it."""

    dtype: np.dtype
    """Of the tokens in the .bin."""
    sizes: np.ndarray
    """Integers [N]: tokens of each sequence."""
    doc_idx: np.ndarray
    """int64 [D + 1]: document d is the sequences doc_idx[d] to doc_idx[d + 1]."""
    num_tokens: int

    @property
    def num_documents(self) -> int:
        return len(self.doc_idx) - 1


def file_stamp(prefix: Path) -> list[list[int]]:
    """JSON values that change when a file of the prefix is replaced or written to; a copy has others too."""
    stats = [path.stat() for path in (idx_path(prefix), bin_path(prefix))]
    return [[stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns] for stat in stats]


def choose_dtype(vocab_size: int) -> np.dtype:
    """The smallest token type for ids below `vocab_size` that Megatron writes too: 16 bits, or else 32."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<i4")


def read_index(prefix: Path) -> IndexArrays:
    """The index of a prefix, after proof that it is whole and that its .bin is the one it speaks of; else DataError."""
    return read_index_of(idx_path(prefix), bin_path(prefix))


def read_index_of(path: Path, tokens: Path) -> IndexArrays:
    """The same for files of any names."""
    for file in (path, tokens):
        if not file.is_file():
            raise DataError(f"{file}: no such file\n  a prepared data set is PREFIX.bin and PREFIX.idx")
    try:
        raw = np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.empty(0, dtype=np.uint8)
        bin_bytes = tokens.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    start = raw[: _OLD_HEADER.size].tobytes()
    if start.startswith(MAGIC):
        index = _read_mmididx(path, raw)
    elif start.startswith(_OLD_MAGIC):
        index = _read_tntidx(path, raw)
    else:
        raise DataError(f"{path}: not an index of tokenised documents: it begins with {start[:9]!r}, not {MAGIC!r}")
    expected = index.num_tokens * index.dtype.itemsize
    if bin_bytes != expected:
        what = "cut short" if bin_bytes < expected else "longer than its index says, or another's"
        raise DataError(f"{tokens}: {what}: {bin_bytes:,} bytes, and {path.name} speaks of {expected:,}")
    return index


def _read_mmididx(path: Path, raw: np.ndarray) -> IndexArrays:
    if len(raw) < _HEADER.size:
        raise DataError(f"{path}: cut short: {len(raw)} bytes are less than its header")
    _, version, code, num_sequences, num_bounds = _HEADER.unpack(raw[: _HEADER.size].tobytes())
    if version != 1:
        raise DataError(f"{path}: version {version} of the layout; 1 is known")
    dtype = _token_type(path, code)
    sizes_end = _HEADER.size + 4 * num_sequences
    pointers_end = sizes_end + 8 * num_sequences
    _check_length(path, raw, pointers_end + 8 * num_bounds)
    sizes = raw[_HEADER.size : sizes_end].view("<i4")
    pointers = raw[sizes_end:pointers_end].view("<i8")
    doc_idx = raw[pointers_end:].view("<i8")
    num_tokens = _check(path, sizes, pointers, doc_idx, itemsize=dtype.itemsize)
    return IndexArrays(dtype=dtype, sizes=sizes, doc_idx=doc_idx, num_tokens=num_tokens)


def _read_tntidx(path: Path, raw: np.ndarray) -> IndexArrays:
    if len(raw) < _OLD_HEADER.size:
        raise DataError(f"{path}: cut short: {len(raw)} bytes are less than its header")
    header = _OLD_HEADER.unpack(raw[: _OLD_HEADER.size].tobytes())
    _, version, code, itemsize, num_sequences, num_sizes, num_bounds = header
    if version != 1:
        raise DataError(f"{path}: version {version} of the layout; 1 is known")
    dtype = _token_type(path, code)
    if itemsize != dtype.itemsize or num_sizes != num_sequences:
        raise DataError(
            f"{path}: not tokens: items of {itemsize} bytes, {num_sizes} sizes of {num_sequences} sequences"
        )
    _check_length(path, raw, _OLD_HEADER.size + 8 * (2 * (num_sequences + 1) + num_sizes + num_bounds))
    values = raw[_OLD_HEADER.size :].view("<i8")
    _, positions, sizes, doc_idx = np.split(values, np.cumsum([num_sequences + 1, num_sequences + 1, num_sizes]))
    num_tokens = _check(path, sizes, positions[:-1], doc_idx, itemsize=1)  # positions count tokens, not bytes
    return IndexArrays(dtype=dtype, sizes=sizes, doc_idx=doc_idx, num_tokens=num_tokens)


def _token_type(path: Path, code: int) -> np.dtype:
    if code not in _CODES:
        kind = _FLOAT_CODES.get(code, f"unknown (code {code})")
        raise DataError(f"{path}: its items are {kind}, not token ids")
    return np.dtype(_CODES[code])


def _check_length(path: Path, raw: np.ndarray, expected: int) -> None:
    if len(raw) != expected:
        what = "cut short" if len(raw) < expected else "longer than its header says"
        raise DataError(f"{path}: {what}: {len(raw):,} bytes of {expected:,}")


def _check(path: Path, sizes: np.ndarray, pointers: np.ndarray, doc_idx: np.ndarray, *, itemsize: int) -> int:
    """The number of tokens, if sequences lie one after the other and documents are stretches of sequences."""
    position = 0
    for begin in range(0, len(sizes), _BLOCK):
        block = np.asarray(sizes[begin : begin + _BLOCK], dtype=np.int64)
        ends = position + np.cumsum(block)
        if block.min() < 0 or not np.array_equal(pointers[begin : begin + _BLOCK], (ends - block) * itemsize):
            raise DataError(f"{path}: damaged: its sequences do not lie one after the other")
        position = int(ends[-1])
    whole = len(doc_idx) > 0 and doc_idx[0] == 0 and doc_idx[-1] == len(sizes)
    if not whole or any((np.diff(doc_idx[at : at + _BLOCK + 1]) < 0).any() for at in range(0, len(doc_idx), _BLOCK)):
        raise DataError(f"{path}: damaged: its documents do not cover its {len(sizes)} sequences once")
    return position


def write_index(path: Path, *, dtype: np.dtype, sizes: np.ndarray, doc_idx: np.ndarray | None = None) -> None:
    """Write an index file, in blocks: `sizes` [N] may be mapped. `doc_idx` None: each sequence is a document."""
    write_joined_index(path, dtype=dtype, parts=[(sizes, doc_idx)])


def write_joined_index(path: Path, *, dtype: np.dtype, parts: Sequence[tuple[np.ndarray, np.ndarray | None]]) -> None:
    """Write the index of data sets laid one after the other, from (sizes, doc_idx) of each, in blocks."""
    code = next(code for code, name in _CODES.items() if np.dtype(name) == dtype)
    sizes = [sizes for sizes, _ in parts]
    num_documents = sum(len(sizes) if doc_idx is None else len(doc_idx) - 1 for sizes, doc_idx in parts)
    with path.open("wb") as file:
        file.write(_HEADER.pack(MAGIC, 1, code, sum(map(len, sizes)), num_documents + 1))
        _write_blocks(file, (block for each in sizes for block in _blocks(each)), "<i4")
        _write_blocks(file, pointers_of(*sizes, itemsize=dtype.itemsize), "<i8")
        _write_blocks(file, _joined_bounds(parts), "<i8")


def pointers_of(*sizes: np.ndarray, itemsize: int) -> Iterator[np.ndarray]:
    """Byte position of each sequence, in blocks; counted in 64 bits whatever the type of `sizes`."""
    position = 0
    for block in (block for each in sizes for block in _blocks(each)):
        ends = position + np.cumsum(block, dtype=np.int64)
        yield (ends - block) * itemsize
        position = int(ends[-1])


def _joined_bounds(parts: Sequence[tuple[np.ndarray, np.ndarray | None]]) -> Iterator[np.ndarray]:
    """The sequence at which each document begins, and where the last ends."""
    yield np.zeros(1, dtype=np.int64)
    first = 0
    for sizes, doc_idx in parts:
        for begin in range(0, len(sizes) if doc_idx is None else len(doc_idx) - 1, _BLOCK):
            if doc_idx is None:
                yield first + np.arange(begin + 1, min(begin + _BLOCK, len(sizes)) + 1)
            else:
                yield first + np.asarray(doc_idx[begin + 1 : begin + 1 + _BLOCK], dtype=np.int64)
        first += len(sizes)


def _blocks(values: np.ndarray) -> Iterator[np.ndarray]:
    return (values[begin : begin + _BLOCK] for begin in range(0, len(values), _BLOCK))


def _write_blocks(file: BinaryIO, blocks: Iterator[np.ndarray], dtype: str) -> None:
    for block in blocks:
        file.write(block.astype(dtype).tobytes())
