"""Names with `*` for a layer's index, matched against a model's modules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeVar

Value = TypeVar("Value")


@lru_cache(maxsize=4096)
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(r"\d+".join(re.escape(part) for part in pattern.split("*")))


def matches(pattern: str, name: str) -> bool:
    """Whether `name` is `pattern` with a number for each `*`."""
    return _compile(pattern).fullmatch(name) is not None


def matching(patterns: Iterable[str], name: str) -> list[str]:
    """The patterns that `name` fits."""
    return [pattern for pattern in patterns if matches(pattern, name)]


def lookup(table: Mapping[str, Value], name: str) -> Value | None:
    """The value of the pattern that `name` fits; the lint has proved that there is at most one."""
    for pattern, value in table.items():
        if matches(pattern, name):
            return value
    return None
