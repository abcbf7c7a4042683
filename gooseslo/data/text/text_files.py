"""A user's own text: .txt files (a file is a document) and .jsonl files (a line is a document)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gooseslo.data.text.corpus import SPLITS, Piece
from gooseslo.data.text.records import BadRecordError, decode, read_lines, record_text
from gooseslo.errors import DataError

_PIECE_CHARACTERS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Source:
    """The part [start, end) of one file, as fractions of its documents (.jsonl) or its characters (.txt)."""

    key: str
    """The key that named it, for messages: data.train."""
    path: Path
    start: float = 0.0
    end: float = 1.0

    def fault(self, rule: str, *, line: int | None = None, way_out: str = "") -> DataError:
        """The error of this file, or of one of its lines."""
        where = f"{self.path}, line {line}" if line else str(self.path)
        return DataError(f"{self.key}: {where}: {rule}" + (f"\n  {way_out}" if way_out else ""))


class TextCorpus:
    """Files by split; relative paths are taken from `base_dir`, the caller's directory.

    A value is a path, or a list of paths and of {path, start, end}. What the files' names and sizes show is refused
    here (DataError); what only reading shows, when it is read.
    """

    name = "text"

    def __init__(self, *, train: Any, valid: Any = None, test: Any = None, text_key: str = "text", base_dir: Path):
        self.text_key = text_key
        given = {"train": train, "valid": valid, "test": test}
        self.sources = {
            split: read_sources(given[split], key=f"data.{split}", base_dir=base_dir)
            for split in SPLITS
            if given[split] is not None
        }
        if "train" not in self.sources:
            raise DataError("data.train: no file given\n  data=text wants data.train=FILE.txt (or .jsonl, or a list)")
        self.splits = tuple(self.sources)

    def identity(self) -> list[object]:
        """Path, size, time of change and part of each file, and the key of the text in a record."""
        return [self.text_key, *identity_of(self.sources)]

    def pieces(self, split: str) -> Iterator[Piece]:
        """The documents of every file in the order given."""
        for source in self.sources[split]:
            if source.path.suffix == ".jsonl":
                yield from _read_records(source, self.text_key)
            else:
                yield from _read_document(source)


def identity_of(sources_by_split: Mapping[str, tuple[Source, ...]]) -> list[object]:
    """JSON values that change when what the sources hold may have changed."""
    facts: list[object] = []
    for split, sources in sources_by_split.items():
        for source in sources:
            stat = source.path.stat()
            facts.append((split, str(source.path), stat.st_size, stat.st_mtime_ns, source.start, source.end))
    return facts


def read_sources(
    value: Any, *, key: str, base_dir: Path, endings: tuple[str, ...] = (".txt", ".jsonl")
) -> tuple[Source, ...]:
    """The sources that a configuration value names, each checked to be a file with text of a known kind."""
    items = value if isinstance(value, (list, tuple)) else [value]
    if not items:
        raise DataError(f"{key}: an empty list\n  give a file, or leave the key out")
    return tuple(_read_source(item, key=key, base_dir=base_dir, endings=endings) for item in items)


def _read_source(item: Any, *, key: str, base_dir: Path, endings: tuple[str, ...]) -> Source:
    fields = dict(item) if isinstance(item, Mapping) else {"path": item}
    if not isinstance(fields.get("path"), (str, Path)) or not set(fields) <= {"path", "start", "end"}:
        raise DataError(f"{key}: {item!r} is neither a path nor {{path, start, end}}")
    for name in ("start", "end"):
        if not isinstance(fields.get(name, 0.0), (int, float)):
            raise DataError(f"{key}: {name} of {fields['path']} is {fields[name]!r}, not a number from 0 to 1")
    source = Source(key=key, **{**fields, "path": base_dir / fields["path"]})
    if not 0 <= source.start < source.end <= 1:
        raise source.fault(f"start={source.start}, end={source.end}: wants 0 <= start < end <= 1")
    if source.path.is_dir():
        raise source.fault("a folder", way_out=f"name the {' or '.join(endings)} files in it")
    if not source.path.is_file():
        raise source.fault("no such file")
    if source.path.suffix not in endings:
        raise source.fault(f"the ending {source.path.suffix!r} is not known", way_out=f"known: {', '.join(endings)}")
    if source.path.stat().st_size == 0:
        raise source.fault("the file is empty")
    return source


def _read_lines(source: Source) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of every line, its end included."""
    try:
        for number, line in read_lines(source.path):
            try:
                yield number, decode(line)
            except BadRecordError as bad:
                raise source.fault(bad.rule, line=number, way_out=bad.way_out) from None
    except OSError as error:
        raise source.fault(f"cannot be read: {error.strerror}") from None


def _read_document(source: Source) -> Iterator[Piece]:
    """The part of a .txt file, cut after a line's end wherever it is large. Blank text is no document."""
    first, last = 0, None
    if (source.start, source.end) != (0, 1):
        num_characters = sum(len(line) for _, line in _read_lines(source))
        first, last = int(source.start * num_characters), int(source.end * num_characters)
    held: list[str] = []
    held_characters, position, has_text = 0, 0, False
    for _, line in _read_lines(source):
        wanted = line[max(0, first - position) : None if last is None else max(0, last - position)]
        position += len(line)
        if held_characters >= _PIECE_CHARACTERS and has_text and wanted:
            yield Piece("".join(held), ends_document=False)
            held, held_characters = [], 0
        held.append(wanted)
        held_characters += len(wanted)
        has_text = has_text or (not wanted.isspace() and wanted != "")
    if has_text:
        yield Piece("".join(held), ends_document=True)


def _read_records(source: Source, text_key: str) -> Iterator[Piece]:
    """The part of a .jsonl file; a record with an empty text is no document."""
    for number, line in record_lines(source):
        try:
            text = record_text(line, text_key, option="data.text_key")
        except BadRecordError as bad:
            raise source.fault(bad.rule, line=number, way_out=bad.way_out) from None
        if text:
            yield Piece(text, ends_document=True)


def record_lines(source: Source) -> Iterator[tuple[int, str]]:
    """The part of a .jsonl file: number (from 1) and text of its lines; blank lines are no records."""
    first, last = 0, None
    if (source.start, source.end) != (0, 1):
        num_records = sum(1 for _, line in _read_lines(source) if line.strip())
        first, last = int(source.start * num_records), int(source.end * num_records)
    index = 0
    for number, line in _read_lines(source):
        if not line.strip():
            continue
        if index >= first and (last is None or index < last):
            yield number, line
        index += 1
