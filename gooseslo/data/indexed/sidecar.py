"""PREFIX.json beside the tokens: what made them, so that training can check that tokenizer and model fit."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gooseslo.errors import DataError

FORMAT = 1


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
    """Name or folder, as it was given; for a trained one its folder's name beside the data."""
    tokenizer_hash: str
    """gooseslo.data.tokenizer.fingerprint."""
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
    sources: tuple[SourceFile, ...] = field(default_factory=tuple)
    format: int = FORMAT

    @classmethod
    def read(cls, prefix: Path) -> Sidecar | None:
        """That of a prefix; None where there is none, as beside files of other tools. DataError if it is not one."""
        path = sidecar_path(prefix)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read: {error}") from error
        return cls._from_json(path, content)

    @classmethod
    def _from_json(cls, path: Path, content: Any) -> Sidecar:
        if not isinstance(content, dict) or not isinstance(content.get("format"), int):
            raise DataError(f"{path}: not written by gooseslo preprocess\n  remove it, or give another prefix")
        if content["format"] > FORMAT:
            raise DataError(f"{path}: format {content['format']} is newer than this gooseslo knows ({FORMAT})")
        try:
            sources = tuple(SourceFile(**source) for source in content.pop("sources"))
            return cls(sources=sources, **content)
        except (KeyError, TypeError) as error:
            raise DataError(f"{path}: damaged: {error}") from error

    def check_counts(self, prefix: Path, *, documents: int, tokens: int) -> None:
        """DataError if it speaks of other files than those beside it."""
        if (self.documents, self.tokens) != (documents, tokens):
            raise DataError(
                f"{sidecar_path(prefix)}: speaks of {self.documents} documents and {self.tokens} tokens, the index "
                f"beside it of {documents} and {tokens}: one of them is another's"
            )

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"


def sidecar_path(prefix: Path) -> Path:
    return prefix.parent / f"{prefix.name}.json"
