"""One chunk of raw records to token ids: what a worker does. Imports nothing that takes long to import."""

from __future__ import annotations

import array
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gooseslo.data.text.records import BadRecordError, checked_text, decode, record_text
from gooseslo.data.tokenizers.fast_encoder import FastEncoder

Encoder = Callable[[list[str]], list[list[int]]]
TYPE_CODES = {"<u2": "H", "<i4": "i"}
"""Token type -> code of the array module."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is done to every chunk; sent to each worker once."""

    tokenizer: str | bytes
    """The JSON of a fast tokenizer, or a pickled encoder of a slow one."""
    plain: bool
    """A document that spells a special token does not get its id."""
    dtype: str
    """One of TYPE_CODES."""
    eod_token_id: int | None
    """Appended to each document; None: nothing is."""
    text_key: str = "text"

    def make_encoder(self) -> Encoder:
        if isinstance(self.tokenizer, str):
            return FastEncoder(self.tokenizer, plain=self.plain)
        encoder: Encoder = pickle.loads(self.tokenizer)
        return encoder


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Some records of one source, one after the other."""

    kind: str
    """txt or jsonl: whole lines; piece: a part of one document; values: a list of what should be texts."""
    content: bytes | Sequence[Any]
    first_line: int
    """Number of its first line, or row, from 1."""
    num_lines: int
    ends_document: bool = True
    """Of a piece."""

    @property
    def unit(self) -> str:
        return "row" if self.kind == "values" else "line"

    @property
    def lines(self) -> str:
        """In a message."""
        last = self.first_line + self.num_lines - 1
        return f"{self.unit} {last}" if self.num_lines == 1 else f"{self.unit}s {self.first_line} to {last}"


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A record without a text."""

    line: int
    place: str
    """Line or row, in words."""
    rule: str
    way_out: str
    raw: str


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """The documents of a chunk: their tokens one after the other, lengths in tokens, end-of-document ids included."""

    tokens: bytes
    lengths: array.array[int]
    num_empty: int = 0
    num_text_bytes: int = 0
    rejected: list[Rejected] = field(default_factory=list)


def encode_chunk(chunk: Chunk, task: Task, encoder: Encoder) -> Encoded:
    """The documents that give any token; of a piece, its tokens without an end."""
    texts, rejected = texts_of(chunk, task.text_key)
    tokens = array.array(TYPE_CODES[task.dtype])
    lengths = array.array("q")
    eod = [] if task.eod_token_id is None or chunk.kind == "piece" else [task.eod_token_id]
    num_empty = 0
    for ids in encoder(texts):
        if not ids:
            num_empty += 1
            continue
        ids += eod
        # By an array of its own: extending one by a list takes twice as long.
        tokens += array.array(tokens.typecode, ids)
        lengths.append(len(ids))
    return Encoded(
        tokens=tokens.tobytes(),
        lengths=lengths,
        num_empty=num_empty,
        num_text_bytes=sum(len(text.encode()) for text in texts),
        rejected=rejected,
    )


def texts_of(chunk: Chunk, text_key: str) -> tuple[list[str], list[Rejected]]:
    """The texts of a chunk, and its records that have none; blank lines are no records."""
    texts: list[str] = []
    rejected: list[Rejected] = []
    if chunk.kind == "piece" and (text := _whole(chunk.content)) is not None:
        return [text], []
    if isinstance(chunk.content, bytes):
        # JSON lines and text lines end at a newline alone: U+2028 and the like are part of a text.
        lines: Sequence[Any] = chunk.content.removesuffix(b"\n").split(b"\n")
    else:
        lines = chunk.content
    for number, line in enumerate(lines, chunk.first_line):
        try:
            text = _text(line, chunk.kind, text_key)
        except BadRecordError as bad:
            place = f"{chunk.unit} {number}"
            rejected.append(Rejected(line=number, place=place, rule=bad.rule, way_out=bad.way_out, raw=_raw(line)))
            continue
        if text is not None:
            texts.append(text)
    return texts, rejected


def _whole(content: Any) -> str | None:
    """A piece of a document; None if a line of it is not UTF-8, which is then to be found."""
    try:
        return str(content, "utf-8")
    except UnicodeDecodeError:
        return None


def _text(line: Any, kind: str, text_key: str) -> str | None:
    """The text of a record; None for a blank line, which is none."""
    if kind == "values":
        return checked_text(line, text_key)
    text = decode(line).removesuffix("\r")
    if not text or text.isspace():
        return None
    return record_text(text, text_key, option="text_key") if kind == "jsonl" else text


def _raw(line: Any) -> str:
    if isinstance(line, bytes):
        return line.decode(errors="backslashreplace")
    return line.encode(errors="backslashreplace").decode() if isinstance(line, str) else repr(line)
