"""A text and its class, which stands as the label of the text's last token: the place whose logits are the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from gooseslo.data.order.sample import IGNORED_LABEL
from gooseslo.data.supervised.example import Example, text_of
from gooseslo.data.text.records import BadRecordError, checked_text, find_key
from gooseslo.data.tokenizers.tokenizer import DocumentEncoder
from gooseslo.errors import DataError

_CLASSES_SHOWN = 10
_MOST_CLASSES = 1 << 16
"""A larger number is no class, but what stands in the wrong column."""


@dataclass(frozen=True, kw_only=True)
class ClassificationTask:
    """Labels are the numbers of classes from 0, or their names; names are numbered in the order of the alphabet."""

    text_key: str = "text"
    label_key: str = "label"
    name: str = "classification"
    has_classes: bool = True

    def identity(self) -> list[object]:
        return [self.text_key, self.label_key]

    def texts(self, record: dict[str, Any]) -> list[str]:
        return [text_of(record, self.text_key, option="data.text_key")]

    def label(self, record: dict[str, Any]) -> int | str:
        label = find_key(record, self.label_key, "set data.label_key=KEY")
        if isinstance(label, bool) or not isinstance(label, int | str):
            raise BadRecordError(f"{self.label_key!r} is neither a whole number nor a text")
        if isinstance(label, str):
            if not checked_text(label, self.label_key).strip():
                raise BadRecordError(f"{self.label_key!r} is empty: a class has a name or a number")
            return label
        if label < 0:
            raise BadRecordError(f"{self.label_key!r} is {label}; classes are counted from 0")
        if label >= _MOST_CLASSES:
            rule = f"{self.label_key!r} is {label}, beyond the {_MOST_CLASSES} classes that numbers can name"
            raise BadRecordError(rule, "a class may also have a name: a text")
        return label

    def encoder(self, tokenizer: PreTrainedTokenizerBase, names: list[str]) -> ClassificationEncoder:
        return ClassificationEncoder(tokenizer, self, names)


def class_names(labels: set[int | str]) -> list[str]:
    """The name of each class by number, from all labels of the train split.

    DataError if they are of two kinds, or all alike.
    """
    numbers = [label for label in labels if isinstance(label, int)]
    texts = sorted(label for label in labels if isinstance(label, str))
    if numbers and texts:
        raise DataError(
            "data.train: labels are numbers in some records and texts in others, "
            f"such as {min(numbers)} and {texts[0]!r}\n  write all of them as numbers, or all as texts"
        )
    if len(labels) == 1:
        raise DataError(
            f"data.train: every record has the label {next(iter(labels))!r}: there is nothing to tell apart"
        )
    if numbers:
        return [str(number) for number in range(max(numbers) + 1)]
    return texts


class ClassificationEncoder:
    def __init__(self, tokenizer: PreTrainedTokenizerBase, task: ClassificationTask, names: list[str]):
        self._encode, self._task = DocumentEncoder(tokenizer), task
        self._numbers = {name: number for number, name in enumerate(names)}

    def draft(self, record: dict[str, Any]) -> tuple[str, int]:
        """The text and the number of its class."""
        label = self._task.label(record)
        if str(label) not in self._numbers:
            rule = f"{self._task.label_key!r} is {label!r}, which no record of the train split has"
            more = f", and {len(self._numbers) - _CLASSES_SHOWN} more" if len(self._numbers) > _CLASSES_SHOWN else ""
            raise BadRecordError(rule, f"its classes: {', '.join(list(self._numbers)[:_CLASSES_SHOWN])}{more}")
        (text,) = self._task.texts(record)
        return text, self._numbers[str(label)]

    def encode(self, drafts: list[tuple[str, int]]) -> list[Example | BadRecordError]:
        encoded = self._encode([text for text, _ in drafts])
        return [self._example(ids, number) for ids, (_, number) in zip(encoded, drafts)]

    def _example(self, ids: list[int], number: int) -> Example | BadRecordError:
        if not ids:
            return BadRecordError(f"{self._task.text_key!r} is no token: there is nothing to read")
        labels = np.full(len(ids), IGNORED_LABEL, dtype=np.int64)
        labels[-1] = number
        return Example(np.array(ids, dtype=np.int64), labels)
