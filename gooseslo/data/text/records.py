"""From a line of a file to the text of a document, with the words for every line that has none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_KEYS_SHOWN = 8


class BadRecordError(Exception):
    """A record that holds no text; `rule` says why, the caller knows the file and the line."""

    def __init__(self, rule: str, way_out: str = ""):
        super().__init__(rule, way_out)  # both, so that it can be pickled
        self.rule = rule
        self.way_out = way_out


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number (from 1) and bytes of every line, its end included, without the byte order mark before the first."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield number, line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line


def decode(line: bytes) -> str:
    """The text of a line or a file; BadRecordError if it is not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        rule = f"not UTF-8 (byte {line[error.start]:#04x} at column {error.start + 1})"
        raise BadRecordError(rule, "save the file as UTF-8") from None


def record_text(line: str, text_key: str, *, option: str) -> str:
    """The text in a line of JSON; BadRecordError if there is none.

    `text_key` may be nested: "data.body" is the key "body" of the object "data", where there is no key "data.body".
    `option` is what the user would set to name another key.
    """
    return checked_text(find_key(read_json(line), text_key, f"set {option}=KEY"), text_key)


def read_object(line: str) -> dict[str, Any]:
    """The object in a line of JSON."""
    record = read_json(line)
    if not isinstance(record, dict):
        raise _no_object(record)
    return record


def read_json(line: str) -> Any:
    """The value in a line; BadRecordError for what is no JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError: an integer of thousands of digits
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "too large or too deeply nested"
        way_out = "write each record on a line of its own" if line.strip() in ("[", "{") else ""
        raise BadRecordError(f"not JSON: {reason}", way_out) from None


def checked_text(value: Any, name: str) -> str:
    """`value`, if it is a text that can be encoded; `name` is its key's or its column's."""
    if not isinstance(value, str):
        raise BadRecordError(f"{name!r} is {_json_kind(value)}, not a text")
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON can spell half of a surrogate pair
        raise BadRecordError(f"{name!r} is not valid Unicode (half of a surrogate pair)") from None
    return value


def find_key(record: Any, key: str, way_out: str) -> Any:
    """The value of a key, which may be nested, as `record_text` says; BadRecordError where there is none."""
    if not isinstance(record, dict):
        raise _no_object(record)
    if key in record:
        return record[key]
    value: Any = record
    parts = key.split(".")
    for depth, part in enumerate(parts):
        place = ".".join(parts[:depth])
        if not isinstance(value, dict):
            raise BadRecordError(f"no key {key!r}: {place!r} is {_json_kind(value)}", way_out)
        if part not in value:
            more = f", and {len(value) - _KEYS_SHOWN} more" if len(value) > _KEYS_SHOWN else ""
            keys = ", ".join(list(value)[:_KEYS_SHOWN]) + more or "none"
            where = f" of {place!r}" if place else ""
            raise BadRecordError(f"no key {key!r}; keys{where}: {keys}", way_out)
        value = value[part]
    return value


def _no_object(record: Any) -> BadRecordError:
    way_out = "write each record on a line of its own" if isinstance(record, list) else ""
    return BadRecordError(f"a record is an object, this is {_json_kind(record)}", way_out)


def _json_kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")
