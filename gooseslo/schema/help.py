"""The keys of a verb as a page of help: types and defaults from the dataclasses, words from their docstrings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gooseslo.schema import data_groups, groups
from gooseslo.schema.keys import OPEN_KEYS, owning_options
from gooseslo.schema.store import SCHEMAS, config_folders, group_names, group_options
from gooseslo.schema.values import type_name

HELP_COLUMN = 30


def field_docs() -> dict[tuple[str, str], str]:
    """(class name, field name) -> the docstring below the field."""
    docs = {}
    schemas = [schema for module in (groups, data_groups) for schema in ast.parse(inspect.getsource(module)).body]
    for schema in schemas:
        if isinstance(schema, ast.ClassDef):
            for field, below in zip(schema.body, schema.body[1:]):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    match below:
                        case ast.Expr(value=ast.Constant(value=str(text))):
                            docs[schema.name, field.target.id] = text
    return docs


@dataclass(frozen=True, kw_only=True)
class KeyHelp:
    """What there is to know of one key."""

    key: str
    kind: str
    default: str
    """As one types it; empty for what has none."""
    text: str


def key_help(job_type: type) -> list[KeyHelp]:
    """Every key of the job under any choice of options, each once, in the order of the schemas."""
    docs = field_docs()
    found: dict[str, KeyHelp] = {}
    for prefix, schema in _schemas(job_type):
        for field in dataclasses.fields(schema):
            key, hint = f"{prefix}{field.name}", _type_of(schema, field.name)
            if key in found or dataclasses.is_dataclass(hint):
                continue
            said = (docs[base.__name__, field.name] for base in schema.__mro__ if (base.__name__, field.name) in docs)
            text = next(said, "") + (_options_note(key) if job_type is groups.TrainJob else "")
            if key in OPEN_KEYS:
                found[key] = KeyHelp(key=f"{key}.FIELD", kind="any", default="", text=text)
            else:
                found[key] = KeyHelp(key=key, kind=type_name(hint), default=_default(field), text=text)
    return list(found.values())


def group_descriptions() -> list[tuple[str, str, str]]:
    """(group, its options, what it is) of every group of `train`."""
    return [(group, ", ".join(group_options(group)), _first_words(group)) for group in group_names()]


def _first_words(group: str) -> str:
    """The comment beside the group in the defaults of `train.yaml`."""
    defaults = (config_folders()[0] / "train.yaml").read_text(encoding="utf-8")
    match = re.search(rf"^  - {group}: \S+ +# (.*)$", defaults, re.MULTILINE)
    return match[1] if match else ""


def job_help(job_type: type) -> str:
    """Groups with their options, then every key of the job: key, type, default, meaning."""
    lines = []
    if job_type is groups.TrainJob:
        lines += ["groups:"]
        lines += [f"  {group + '=':<{HELP_COLUMN - 2}}{', '.join(group_options(group))}" for group in group_names()]
        lines += [""]
    return "\n".join([*lines, "keys:", *(line for entry in key_help(job_type) for line in _lines(entry))])


def _options_note(key: str) -> str:
    """Under which options the key exists, where it is not under all of its group's."""
    owners = owning_options(key)
    return f" ({', '.join(owners)})" if len(owners) < len(SCHEMAS.get(key.partition(".")[0], {})) else ""


def _type_of(schema: type, name: str) -> Any:
    return typing.get_type_hints(schema)[name]


def _schemas(job_type: type) -> Iterator[tuple[str, type]]:
    """(prefix of its keys, class) of every part of a job, a group's once per option."""
    yield from _parts("", job_type)
    if job_type is groups.TrainJob:
        for group, options in SCHEMAS.items():
            for schema in options.values():
                yield from _parts(f"{group}.", schema)


def _parts(prefix: str, schema: type) -> Iterator[tuple[str, type]]:
    """A class and those of its sections; of a job the groups are left out, which have a class per option."""
    yield prefix, schema
    for field in dataclasses.fields(schema):
        if dataclasses.is_dataclass(field.default_factory) and not (
            schema is groups.TrainJob and field.name in SCHEMAS
        ):
            assert isinstance(field.default_factory, type)
            yield from _parts(f"{prefix}{field.name}.", field.default_factory)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        default = field.default
    else:
        assert field.default_factory is not dataclasses.MISSING
        default = field.default_factory()
    words = {None: "null", True: "true", False: "false"}
    return words[default] if default is None or isinstance(default, bool) else str(default)


def _lines(entry: KeyHelp) -> list[str]:
    kind = f"{entry.kind}, {entry.default}" if entry.default else entry.kind
    text = textwrap.wrap(f"[{kind}] {entry.text}", 118 - HELP_COLUMN, break_on_hyphens=False)
    head = f"  {entry.key:<{HELP_COLUMN - 3}} "
    return [head + text[0], *(" " * HELP_COLUMN + line for line in text[1:])]
