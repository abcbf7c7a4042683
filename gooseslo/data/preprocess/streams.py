"""Bytes of a file in blocks, decompressed where it is compressed; a file that is cut short is an OSError."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

COMPRESSIONS = ("gz", "zst")
_BLOCK_BYTES = 1 << 20
_ZST_INPUT_BYTES = 1 << 11
"""Compressed bytes decoded at once: a block of 128 KiB may take four, so that more could fill the memory."""
_LARGEST_WINDOW = 1 << 31
"""What `zstd --long=31` makes."""


class Stream:
    """An iterator over non-empty blocks of about 1 MiB; `consumed` counts the bytes that were read from the disk."""

    def __init__(self, file: BinaryIO, compression: str, *, skip_bytes: int = 0):
        """`skip_bytes`: of the decompressed content, to begin after."""
        self.consumed = 0
        self._file = file
        self._skip_bytes = skip_bytes
        self._decode = {"": self._plain, "gz": self._gzip, "zst": self._zstd}[compression]

    def __iter__(self) -> Iterator[bytes]:
        try:
            skip = 0 if self._decode == self._plain else self._skip_bytes
            for block in self._decode():
                if skip >= len(block):
                    skip -= len(block)
                    continue
                yield block[skip:] if skip else block
                skip = 0
        except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
            raise OSError(f"the compressed data is damaged or cut short ({error})") from error
        finally:
            if self._file is not sys.stdin.buffer:
                self._file.close()

    def _plain(self) -> Iterator[bytes]:
        if self._skip_bytes:
            self.consumed = self._file.seek(self._skip_bytes)
        while block := self._file.read(_BLOCK_BYTES):
            self.consumed += len(block)
            yield block

    def _gzip(self) -> Iterator[bytes]:
        with gzip.GzipFile(fileobj=self._file) as decoder:
            while block := decoder.read(_BLOCK_BYTES):
                self.consumed = self._file.tell()
                yield block

    def _zstd(self) -> Iterator[bytes]:
        """Frame after frame; the library's own stream reader takes a file that is cut short for a whole one."""
        frames = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
        decoder, begun = frames.decompressobj(), False
        parts: list[bytes] = []
        size = 0
        while data := self._file.read(_ZST_INPUT_BYTES):
            self.consumed += len(data)
            while data:
                begun = True
                parts.append(decoder.decompress(data))
                size += len(parts[-1])
                data = b""
                if decoder.eof:
                    data = decoder.unused_data
                    decoder, begun = frames.decompressobj(), False
            if size >= _BLOCK_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
        if begun:
            raise EOFError("the last frame has no end")
        if size:
            yield b"".join(parts)


def open_stream(path: Path | None, compression: str, *, skip_bytes: int = 0) -> Stream:
    """The content of a file, or of standard input."""
    file = sys.stdin.buffer if path is None else path.open("rb")
    return Stream(file, compression, skip_bytes=skip_bytes)
