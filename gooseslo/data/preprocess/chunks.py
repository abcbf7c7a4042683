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
_LARGEST_PIECE_BYTES = 5 << 18
"""Where no line ends it is cut all the same: a worker takes two hundred times as much memory as its text."""
_LONGEST_LINE_BYTES = 1 << 30
"""A record is in memory as a whole, several times over."""


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
        if block is None:
            raise DataError(
                f"input: {source.name}, line {position.line}: longer than {_LONGEST_LINE_BYTES:,} bytes, "
                f"the most for a record\n  {_long_line_way_out(source)}"
            )
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


def _long_line_way_out(source: Source) -> str:
    if source.format == "txt":
        return "document=file reads a file as one document, of any size"
    return "divide it into several records"


def _whole_lines(stream: Stream) -> Iterator[bytes | None]:
    """The content in blocks that end with a line; the last line may lack its end. None before a line is too long."""
    held: list[bytes] = []
    held_bytes = 0
    for block in stream:
        end = block.rfind(b"\n") + 1
        first = block.find(b"\n") if end else len(block)
        if held_bytes + first > _LONGEST_LINE_BYTES:
            yield None
        if end:
            yield b"".join([*held, block[:end]])
            held, held_bytes = [], 0
        if end < len(block):
            held.append(block[end:])
            held_bytes += len(block) - end
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
    """The document that the file is, cut wherever it is large; a blank file is none."""
    held, line, has_text, begins = bytearray(), 1, False, True

    def piece(content: bytes, *, ends_document: bool) -> Placed:
        num_lines = max(1, content.count(b"\n"))
        place = {"first_line": line, "num_lines": num_lines}
        chunk = Chunk(kind="piece", content=content, **place, begins_document=begins, ends_document=ends_document)
        after = Position(source=start.source + 1)
        return Placed(chunk, source=start.source, name=source.name, end=after, consumed=stream.consumed)

    for block in _marked_blocks(stream):
        held += block
        has_text = has_text or not block.isspace()
        if not has_text and len(held) > _LONGEST_LINE_BYTES:
            raise DataError(f"input: {source.name}: begins with more than {_LONGEST_LINE_BYTES:,} blank bytes")
        while has_text and (end := _piece_end(held)):
            content = bytes(held[:end])
            yield piece(content, ends_document=False)
            begins = False
            line += content.count(b"\n")
            del held[:end]
    if has_text:
        yield piece(bytes(held), ends_document=True)


def _marked_blocks(stream: Stream) -> Iterator[bytes]:
    """The blocks without a byte order mark before the first."""
    blocks = iter(stream)
    start = b""
    while len(start) < len(BYTE_ORDER_MARK) and (block := next(blocks, b"")):
        start += block
    if start := start.removeprefix(BYTE_ORDER_MARK):
        yield start
    yield from blocks


def _piece_end(held: bytearray) -> int:
    """Where the next piece ends; 0 where it is not yet known, or all that is left is the last piece.

    After the first line's end that makes it large enough; where lines are too long for that, before a space in its last
    quarter (with which a word of most tokenizers begins), or else between two characters.
    """
    if (newline := held.find(b"\n", _PIECE_BYTES, _LARGEST_PIECE_BYTES)) >= 0:
        return newline + 1 if newline + 1 < len(held) else 0
    if len(held) <= _LARGEST_PIECE_BYTES:
        return 0
    if (space := held.rfind(b" ", _LARGEST_PIECE_BYTES * 3 // 4, _LARGEST_PIECE_BYTES)) >= 0:
        return space
    end = _LARGEST_PIECE_BYTES
    while end > _LARGEST_PIECE_BYTES - 4 and held[end] & 0xC0 == 0x80:  # within a character
        end -= 1
    return end


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
