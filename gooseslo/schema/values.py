"""What a key's text means under the key's type: strict numbers and booleans, text untouched."""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from gooseslo.schema.quoting import bare_keys, unquote


@dataclass(frozen=True, repr=False)
class Scalar:
    """Text as typed; `quoted` where quotes enclosed all of it (they are gone)."""

    text: str
    quoted: bool = False

    @classmethod
    def typed(cls, text: str) -> Scalar:
        """From the right side of a `key=value` argument."""
        return cls(*unquote(text))

    def __repr__(self) -> str:
        return self.text


Raw = Scalar | Sequence["Raw"] | Mapping[str, "Raw"]
"""A value before its key's type is known: a command line gives scalars, a YAML file lists and mappings too."""

OPEN = object()
"""The type of `model.config.*`: whatever Hydra's grammar makes of it."""


NUMBER_OR_NAME = int | str
"""The type of keys that take a whole number or one of some words."""


class BadValueError(Exception):
    """The value does not fit its key's type; `rule` and `way_out` are for the user."""

    def __init__(self, rule: str, way_out: str = ""):
        super().__init__(rule)
        self.rule = rule
        self.way_out = way_out


def read_value(raw: Raw, hint: Any) -> Any:
    """The value of `raw` under the type `hint`; raises BadValueError.

    `Any` is the type of keys that hold text or a list: text unless it starts with `[` or `{`.
    """
    inner, optional = _without_none(hint)
    if isinstance(raw, Scalar) and not raw.quoted and raw.text == "null":
        if optional or inner in (Any, OPEN):
            return None
        raise BadValueError(
            f"{_article(inner)} cannot be null", "for the text null, quote it: \"'null'\"" * (inner is str)
        )
    if inner in (str, NUMBER_OR_NAME):
        if not isinstance(raw, Scalar):
            raise BadValueError(f"is {_article(inner)}, not a list or a mapping")
        is_number = inner == NUMBER_OR_NAME and not raw.quoted and re.fullmatch(r"[+-]?(0|[1-9][0-9]{0,17})", raw.text)
        return int(raw.text) if is_number else raw.text
    if inner is Any:
        if isinstance(raw, Scalar) and (raw.quoted or not raw.text.startswith(("[", "{"))):
            return raw.text
        return _open_value(raw)
    if inner is OPEN:
        return _open_value(raw)
    if typing.get_origin(inner) is list:
        return _list_value(raw, typing.get_args(inner)[0])
    if typing.get_origin(inner) is dict:
        return _mapping_value(raw)
    return _strict(_open_value(Scalar(raw.text) if isinstance(raw, Scalar) else raw), inner)


def type_name(hint: Any) -> str:
    """The type in a user's words."""
    inner, optional = _without_none(hint)
    if typing.get_origin(inner) is list:
        name = f"list of {type_name(typing.get_args(inner)[0])}s"
    elif typing.get_origin(inner) is dict:
        name = "mapping"
    else:
        names = {int: "integer", float: "number", bool: "boolean", str: "text", Any: "text or list", OPEN: "any"}
        names[NUMBER_OR_NAME] = "integer or text"
        name = names[inner]
    return f"{name} or null" if optional else name


def _article(inner: Any) -> str:
    name = type_name(inner)
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _without_none(hint: Any) -> tuple[Any, bool]:
    if isinstance(hint, types.UnionType) and type(None) in typing.get_args(hint):
        (inner,) = (part for part in typing.get_args(hint) if part is not type(None))
        return inner, True
    return hint, False


def _strict(value: Any, kind: type) -> Any:
    """`value` if it is of `kind` without any conversion but integer to number."""
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        examples = {int: "such as 2", float: "such as 0.1 or 1e-4", bool: "true or false", str: "such as 'name'"}
        raise BadValueError(f"is not {_article(kind)} ({examples[kind]})")
    return value


def _list_value(raw: Raw, element: Any) -> list[Any]:
    value = _open_value(Scalar(raw.text) if isinstance(raw, Scalar) else raw)
    if not isinstance(value, list):
        raise BadValueError(f"is not a list of {type_name(element)}s", "write it in square brackets: [0.9,0.95]")
    return [_strict(item, element) for item in value]


def _mapping_value(raw: Raw) -> dict[str, Any]:
    value = _open_value(Scalar(raw.text) if isinstance(raw, Scalar) else raw)
    if not isinstance(value, dict):
        raise BadValueError("is not a mapping", 'write it in braces: {"NAME": {KEY: VALUE}}')
    return value


def _open_value(raw: Raw) -> Any:
    """By Hydra's grammar; a YAML list or mapping leaf by leaf."""
    if isinstance(raw, Mapping):
        return {key: _open_value(item) for key, item in raw.items()}
    if not isinstance(raw, Scalar):
        return [_open_value(item) for item in raw]
    return raw.text if raw.quoted else _parse(raw.text)


def _parse(text: str) -> Any:
    """`text` by Hydra's value grammar: numbers, booleans, null, lists, mappings, else text."""
    from hydra.errors import HydraException

    way_out = "text with = # ( ) or a comma in a list needs quotes of its own: \"['a=b.txt']\""
    source = bare_keys(text) if text.startswith(("[", "{")) else text
    try:
        override = _parser().parse_override(f"key={source}")
    except HydraException:
        if text.startswith(("[", "{")):
            raise BadValueError("is not a list or mapping in Hydra's grammar", way_out) from None
        return text
    if override.is_sweep_override():
        raise BadValueError("takes one value, not a sweep over several")
    value = override.value()
    _refuse_non_finite(value)
    return value


def _refuse_non_finite(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise BadValueError("must be finite", "quote it if it is meant as text")
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for item in items:
        _refuse_non_finite(item)


@cache
def _parser() -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()
