"""What every source of text offers, so that tokenising one is tokenising any."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

SPLITS = ("train", "valid", "test")


class Piece(NamedTuple):
    """A stretch of one document; a large document comes in several, so that memory stays bounded."""

    text: str
    ends_document: bool


class Corpus(Protocol):
    """Text by split."""

    @property
    def name(self) -> str:
        """Part of the cache folder's name."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits there are, "train" first."""

    def identity(self) -> list[object]:
        """JSON values that change when the text may have changed."""

    def pieces(self, split: str) -> Iterator[Piece]:
        """The split's text in order; no document is empty. DataError for what cannot be read."""
