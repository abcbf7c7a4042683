"""One chunk of raw records to token ids: what a worker does. Imports nothing that takes long to import."""

from __future__ import annotations

import array
import pickle
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Union

from gooseslo.data.text.records import BadRecordError, checked_text, decode, record_text
from gooseslo.data.tokenizers.byte_pairs import BytePairs
from gooseslo.data.tokenizers.fast_encoder import FastEncoder

if TYPE_CHECKING:
    import numpy as np

Ids = Union[list[int], "np.ndarray"]
TYPE_CODES = {"<u2": "H", "<i4": "i"}
"""Token type -> code of the array module."""
_PART_CHARACTERS = 1 << 20
_BETWEEN_WORDS = re.compile(r"\S (?=[^\W\d_])")


class Encoder(Protocol):
    def __call__(self, texts: list[str], *, continued: bool = False) -> Sequence[Ids]:
        """Ids of each text; with `continued` of later parts of texts."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is done to every chunk; sent to each worker once."""

    tokenizer: str | bytes
    """The JSON of a fast tokenizer, or a pickled encoder of a slow one."""
    pairs: BytePairs | None = None
    """What tiktoken needs to give the same ids faster; None: it might not."""
    plain: bool
    """A document that spells a special token does not get its id."""
    dtype: str
    """One of TYPE_CODES."""
    eod_token_id: int | None
    """Appended to each document; None: nothing is."""
    text_key: str = "text"

    def make_encoder(self) -> Encoder:
        if isinstance(self.tokenizer, str):
            if self.pairs is None:
                return FastEncoder(self.tokenizer, plain=self.plain)
            from gooseslo.data.tokenizers.byte_pair_encoder import BytePairEncoder

            return BytePairEncoder(self.pairs, self.tokenizer, plain=self.plain)
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
    begins_document: bool = True
    ends_document: bool = True
    """Both of a piece."""

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
    eod = array.array(TYPE_CODES[task.dtype])
    if task.eod_token_id is not None and chunk.kind != "piece":
        eod.append(task.eod_token_id)
    num_empty = 0
    for parts in _in_parts(texts, encoder, continued=not chunk.begins_document):
        length = sum(_append(tokens, ids) for ids in parts)
        if not length:
            num_empty += 1
            continue
        tokens += eod
        lengths.append(length + len(eod))
    return Encoded(
        tokens=tokens.tobytes(),
        lengths=lengths,
        num_empty=num_empty,
        num_text_bytes=sum(len(text.encode()) for text in texts),
        rejected=rejected,
    )


def _in_parts(texts: list[str], encoder: Encoder, *, continued: bool) -> Iterator[Iterable[Ids]]:
    """For each text its ids, of all at once or, of long ones, part by part."""
    if all(len(text) <= _PART_CHARACTERS for text in texts):
        yield from ([ids] for ids in encoder(texts, continued=continued))
    else:
        for text in texts:
            parts = enumerate(parts_of(text))
            yield (encoder([part], continued=continued or number > 0)[0] for number, part in parts)


def parts_of(text: str) -> Iterator[str]:
    """A text of any length in parts: an encoder takes hundreds of times the memory of its text.

    Cut before a space between two words, where most tokenizers begin a word; where there is none for a while, anywhere.
    """
    begin = 0
    while len(text) - begin > _PART_CHARACTERS:
        limit = begin + _PART_CHARACTERS
        found = _BETWEEN_WORDS.search(text, begin + _PART_CHARACTERS // 2, limit)
        end = found.start() + 1 if found else limit
        yield text[begin:end]
        begin = end
    yield text[begin:]


def _append(tokens: array.array[int], ids: Ids) -> int:
    """How many they were."""
    if isinstance(ids, list):
        # By an array of its own: extending one by a list takes twice as long.
        tokens += array.array(tokens.typecode, ids)
    else:
        tokens.frombytes(ids.astype(tokens.typecode).tobytes())
    return len(ids)


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
