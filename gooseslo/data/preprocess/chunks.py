"""Sources to chunks of raw records, each small enough for one message to a worker, from any position on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass

from gooseslo.data.preprocess.columns import column_batches
from gooseslo.data.preprocess.inputs import Source
from gooseslo.data.preprocess.streams import Stream, open_stream
from gooseslo.data.preprocess.work import Chunk
from gooseslo.data.text.records import BYTE_ORDER_MARK
from gooseslo.errors import DataError

_CHUNK_BYTES = 1 << 20
_PIECE_BYTES = 1 << 20
"""A document of more is encoded in pieces, cut after a line; the cuts depend on the document alone."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where reading goes on."""

    source: int = 0
    offset: int = 0
    """Bytes of the decompressed content, or rows, into the source."""
    line: int = 1
    """Number of the next line, or row."""


@dataclass(frozen=True)
class Placed:
    """A chunk, and where reading goes on after it."""

    chunk: Chunk
    _: KW_ONLY
    source: int
    name: str
    """Of the source."""
    end: Position
    consumed: int
    """Bytes of its source on the disk that have been read up to its end, about."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How sources are read."""

    text_key: str = "text"
    whole_files: bool = False
    """A .txt file is one document; else each of its lines is."""
    chunk_size: int = 1024
    """Records in a chunk at most."""


def read_chunks(sources: list[Source], options: ReadOptions, start: Position) -> Iterator[Placed]:
    """The chunks of all sources in order from `start` on. DataError for what cannot be read, or changes meanwhile."""
    for number in range(start.source, len(sources)):
        source = sources[number]
        at = start if number == start.source else Position(source=number)
        try:
            yield from _read_source(source, options, at)
        except OSError as error:
            raise DataError(f"input: {source.name}: cannot be read: {error.strerror or error}") from error
        if source.has_changed():
            raise DataError(f"input: {source.name}: the file changed while it was read")


def _read_source(source: Source, options: ReadOptions, start: Position) -> Iterator[Placed]:
    if source.format in ("parquet", "arrow"):
        yield from _rows(source, options, start)
        return
    path = None if source.is_standard_input else source.path
    stream = open_stream(path, source.compression, skip_bytes=start.offset)
    if source.format == "txt" and options.whole_files:
        yield from _pieces(stream, source, start)
    else:
        yield from _lines(stream, source, options.chunk_size, start)


def _lines(stream: Stream, source: Source, chunk_size: int, start: Position) -> Iterator[Placed]:
    """Whole lines: at most `chunk_size` of them and about a block of bytes."""
    position = start
    for block in _whole_lines(stream):
        begin = 0
        if position.offset == 0 and block.startswith(BYTE_ORDER_MARK):
            begin = len(BYTE_ORDER_MARK)
        while begin < len(block):
            end, num_lines = _cut(block, begin, chunk_size)
            content = block[begin:end] if end - begin < len(block) else block
            chunk = Chunk(kind=source.format, content=content, first_line=position.line, num_lines=num_lines)
            read = end if position.offset == 0 else end - begin  # a byte order mark counts
            position = Position(source=start.source, offset=position.offset + read, line=position.line + num_lines)
            consumed = stream.consumed if source.compression else position.offset
            yield Placed(chunk, source=start.source, name=source.name, end=position, consumed=consumed)
            begin = end


def _whole_lines(stream: Stream) -> Iterator[bytes]:
    """The content in blocks that end with a line; the last line may lack its end."""
    held: list[bytes] = []
    for block in stream:
        end = block.rfind(b"\n") + 1
        if end:
            yield b"".join([*held, block[:end]])
            held = []
        if end < len(block):
            held.append(block[end:])
    if held:
        yield b"".join(held)


def _cut(block: bytes, begin: int, chunk_size: int) -> tuple[int, int]:
    """(end, number of lines) of at most `chunk_size` lines from `begin` on."""
    end, num_lines = begin, 0
    while num_lines < chunk_size and end < len(block):
        end = block.find(b"\n", end) + 1 or len(block)
        num_lines += 1
    return end, num_lines


def _pieces(stream: Stream, source: Source, start: Position) -> Iterator[Placed]:
    """The document that the file is, cut after a line wherever it is large; a blank file is none."""
    held, line, has_text = b"", 1, False

    def piece(content: bytes, *, ends_document: bool) -> Placed:
        num_lines = max(1, content.count(b"\n"))
        chunk = Chunk(kind="piece", content=content, first_line=line, num_lines=num_lines, ends_document=ends_document)
        after = Position(source=start.source + 1)
        return Placed(chunk, source=start.source, name=source.name, end=after, consumed=stream.consumed)

    for block in stream:
        held = held + block if held else block.removeprefix(BYTE_ORDER_MARK if line == 1 else b"")
        has_text = has_text or not block.isspace()
        while has_text and 0 < (end := held.find(b"\n", _PIECE_BYTES) + 1) < len(held):
            yield piece(held[:end], ends_document=False)
            line, held = line + held.count(b"\n", 0, end), held[end:]
    if has_text:
        yield piece(held, ends_document=True)


def _rows(source: Source, options: ReadOptions, start: Position) -> Iterator[Placed]:
    row = start.offset
    batches = column_batches(source, options.text_key, skip_rows=row, batch_rows=options.chunk_size)
    for values, part in batches:
        for begin, end in _few_bytes(values):
            chunk = Chunk(kind="values", content=values[begin:end], first_line=row + 1, num_lines=end - begin)
            row += end - begin
            position = Position(source=start.source, offset=row, line=row + 1)
            consumed = int(part * source.num_bytes)
            yield Placed(chunk, source=start.source, name=source.name, end=position, consumed=consumed)


def _few_bytes(values: list[str | None]) -> Iterator[tuple[int, int]]:
    """Stretches of the list with about a chunk of text each."""
    begin, size = 0, 0
    for end, value in enumerate(values, 1):
        size += len(value) if value else 0
        if size >= _CHUNK_BYTES or end == len(values):
            yield begin, end
            begin, size = end, 0
