"""PREFIX.json beside the tokens: what made them, so that training can check that tokenizer and model fit."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gooseslo.data.indexed.names import sidecar_path
from gooseslo.errors import DataError

FORMAT = 2
"""1 had no hash of the tokens."""
_BEGINNING = re.compile(rb'\s*\{\s*"tokenizer"\s*:')
"""Of every sidecar, however it was laid out."""


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One input of the data set."""

    path: str
    num_bytes: int
    """On the disk; 0 for standard input."""
    documents: int


@dataclass(frozen=True, kw_only=True)
class Sidecar:
    """Facts about a prepared data set."""

    tokenizer: str
    """Name on the Hub, or a folder: absolute, or from that of the data on."""
    tokenizer_hash: str
    """gooseslo.data.tokenizers.tokenizer.fingerprint."""
    vocab_size: int
    """Rows that the tokenizer needs in an embedding table: added tokens included."""
    eod_token_id: int | None
    """Ends each document; None: nothing was appended."""
    largest_token_id: int
    """That occurs; -1 where there is no token."""
    dtype: str
    documents: int
    tokens: int
    empty_documents: int = 0
    """Inputs without any token, which were left out."""
    rejected_documents: int = 0
    """Inputs that could not be read, which were left out (`on_error=skip`)."""
    tokens_sha256: str | None = None
    """Of the bytes in the .bin; None in files of an older version."""
    sources: tuple[SourceFile, ...] = field(default_factory=tuple)
    format: int = FORMAT

    @staticmethod
    def is_beside(prefix: Path) -> bool:
        """Whether PREFIX.json is one; a .json of another kind, such as the text that the tokens were made of, is not.

        OSError if it cannot be read, FileNotFoundError where there is none.
        """
        with sidecar_path(prefix).open("rb") as file:
            return _BEGINNING.match(file.read(64)) is not None

    @classmethod
    def read(cls, prefix: Path) -> Sidecar | None:
        """That of a prefix; None where there is none, as beside files of other tools. DataError if it is damaged."""
        path = sidecar_path(prefix)
        try:
            if not cls.is_beside(prefix):
                return None
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read: {error}") from error
        return cls._from_json(path, content)

    @classmethod
    def _from_json(cls, path: Path, content: Any) -> Sidecar:
        if not isinstance(content.get("format"), int):
            raise DataError(f"{path}: damaged: it has no format")
        if content["format"] > FORMAT:
            raise DataError(f"{path}: format {content['format']} is newer than this gooseslo knows ({FORMAT})")
        try:
            sources = tuple(SourceFile(**source) for source in content.pop("sources"))
            sidecar = cls(sources=sources, **content)
        except (KeyError, TypeError) as error:
            raise DataError(f"{path}: damaged: {error}") from error
        for name in ("tokenizer", "tokenizer_hash", "vocab_size", "largest_token_id", "dtype", "documents", "tokens"):
            value, expected = getattr(sidecar, name), str if name.startswith(("tokenizer", "dtype")) else int
            if type(value) is not expected:
                raise DataError(f"{path}: damaged: its {name} is {value!r}")
        if not isinstance(sidecar.tokens_sha256, str | None):
            raise DataError(f"{path}: damaged: its tokens_sha256 is {sidecar.tokens_sha256!r}")
        return sidecar

    def check_counts(self, prefix: Path, *, documents: int, tokens: int) -> None:
        """DataError if it speaks of other files than those beside it."""
        if (self.documents, self.tokens) != (documents, tokens):
            raise DataError(
                f"{sidecar_path(prefix)}: speaks of {self.documents} documents and {self.tokens} tokens, the index "
                f"beside it of {documents} and {tokens}: one of them is another's"
            )

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"
