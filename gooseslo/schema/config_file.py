"""Reads a YAML file of keys as text with lines, so that YAML's own guesses (octal, clock, yes) never reach a value."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from gooseslo.errors import ConfigError, Fault
from gooseslo.schema.keys import OPEN_KEYS, open_key_above, sections
from gooseslo.schema.overrides import Assignment
from gooseslo.schema.store import SCHEMAS
from gooseslo.schema.values import Raw, Scalar

NULLS = ("", "~", "null", "Null", "NULL")


def read_config_file(path: Path, keys: dict[str, Any]) -> list[Assignment]:
    """One assignment per leaf, in the file's order; `keys` says where a leaf may itself be a list or a mapping.

    Raises ConfigError for what is not a YAML mapping of distinct text keys.
    """
    text = _read_text(path)
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise ConfigError(_file_fault(path, "uses YAML anchors", "write the values out"))
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or "not allowed in YAML"
        raise ConfigError(_file_fault(path, f"{line}is not YAML: {problem}")) from None
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(_file_fault(path, "is not a mapping of keys to values"))
    return list(_leaves(root, "", path, keys))


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(_file_fault(path, f"line {line}: is not UTF-8 text")) from None
    except OSError as error:
        raise ConfigError(_file_fault(path, f"cannot be read: {error.strerror}")) from None


def _file_fault(path: Path, rule: str, way_out: str = "") -> Fault:
    return Fault(key="--config-file", value=path, rule=rule, way_out=way_out)


def _leaves(node: yaml.MappingNode, prefix: str, path: Path, keys: dict[str, Any]) -> Iterator[Assignment]:
    for name, child in _items(node, path):
        key = f"{prefix}{name}"
        # A mapping is a section, unless its key takes one as its value (data.train, fields of model.config).
        is_value = (key in keys and key not in OPEN_KEYS) or open_key_above(key) is not None
        if isinstance(child, yaml.MappingNode) and not is_value and child.value:
            yield from _leaves(child, f"{key}.", path, keys)
        elif not (key in SCHEMAS.keys() | sections(keys) - {*OPEN_KEYS} and _is_empty(child)):
            where = f"{path}, line {child.start_mark.line + 1}"
            yield Assignment(key=key, raw=_raw(child, path), shown=key, where=where)


def _is_empty(node: yaml.Node) -> bool:
    """A section without keys, as `fusion: {}` or as `train:` with every line below it commented out."""
    return not node.value or (isinstance(node, yaml.ScalarNode) and node.style is None and node.value in NULLS)


def _items(node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, yaml.Node]]:
    seen = set()
    for name, child in node.value:
        line = f"line {name.start_mark.line + 1}: "
        if not isinstance(name, yaml.ScalarNode):
            raise ConfigError(_file_fault(path, f"{line}a key must be a name"))
        if name.value in seen:
            raise ConfigError(_file_fault(path, f"{line}the key {name.value} is there twice"))
        seen.add(name.value)
        yield name.value, child


def _raw(node: yaml.Node, path: Path) -> Raw:
    if isinstance(node, yaml.MappingNode):
        return {name: _raw(child, path) for name, child in _items(node, path)}
    if isinstance(node, yaml.SequenceNode):
        return [_raw(child, path) for child in node.value]
    if node.style is not None:  # in quotes, or a block of text
        return Scalar(node.value, quoted=True)
    return Scalar("null" if node.value in NULLS else node.value)
