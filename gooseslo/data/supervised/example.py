"""One example: what the model reads, and what it is to predict at each place."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from transformers import PreTrainedTokenizerBase

from gooseslo.data.text.records import BadRecordError, checked_text, find_key


class Example(NamedTuple):
    """Both int64 [n]."""

    input_ids: np.ndarray
    labels: np.ndarray
    """-100 where nothing is to be learnt."""


class Encoder(Protocol):
    """From records to examples, in two steps: many texts in one call of a tokenizer take a fraction of the time."""

    def draft(self, record: dict[str, Any]) -> Any:
        """What is to be tokenised of a record, as JSON has it; BadRecordError if there is no example in it."""

    def encode(self, drafts: list[Any]) -> list[Example | BadRecordError]:
        """The example of each draft, or what its tokens show to be wrong with the record."""


class Task(Protocol):
    """What is to be learnt from records of a kind."""

    @property
    def name(self) -> str:
        """That of the `data` option."""

    @property
    def has_classes(self) -> bool:
        """Labels are classes, not tokens."""

    def identity(self) -> list[object]:
        """JSON values on which the examples depend."""

    def texts(self, record: dict[str, Any]) -> list[str]:
        """What a tokenizer may be trained on; BadRecordError for a record without it."""

    def label(self, record: dict[str, Any]) -> int | str | None:
        """The class of a record, None where there are none; BadRecordError for a record without it."""

    def encoder(self, tokenizer: PreTrainedTokenizerBase, names: list[str]) -> Encoder: ...


def text_of(record: dict[str, Any], key: str, *, option: str, way_out: str = "") -> str:
    """A text of the record; `option` is what names its key, which may be nested: "chat.prompt"."""
    return checked_text(find_key(record, key, way_out or f"set {option}=KEY"), key)
