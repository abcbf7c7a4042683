"""The keys of a verb as a page of help: types and defaults from the dataclasses, words from their docstrings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Iterator
from typing import Any

from gooseslo.schema import groups
from gooseslo.schema.keys import OPEN_KEY, owning_options
from gooseslo.schema.store import SCHEMAS, group_names, group_options
from gooseslo.schema.values import type_name

HELP_COLUMN = 30


def field_docs() -> dict[tuple[str, str], str]:
    """(class name, field name) -> the docstring below the field."""
    docs = {}
    for schema in ast.parse(inspect.getsource(groups)).body:
        if isinstance(schema, ast.ClassDef):
            for field, below in zip(schema.body, schema.body[1:]):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    match below:
                        case ast.Expr(value=ast.Constant(value=str(text))):
                            docs[schema.name, field.target.id] = text
    return docs


def job_help(job_type: type) -> str:
    """Groups with their options, then every key of the job: key, type, default, meaning."""
    has_groups = job_type is groups.TrainJob
    lines = []
    if has_groups:
        lines += ["groups:"]
        lines += [f"  {group + '=':<{HELP_COLUMN - 2}}{', '.join(group_options(group))}" for group in group_names()]
        lines += [""]
    lines += ["keys:"]
    docs = field_docs()
    seen = set()
    for prefix, schema in _schemas(job_type):
        for field in dataclasses.fields(schema):
            key, hint = f"{prefix}{field.name}", _type_of(schema, field.name)
            if key not in seen and not dataclasses.is_dataclass(hint):
                said = (
                    docs[base.__name__, field.name] for base in schema.__mro__ if (base.__name__, field.name) in docs
                )
                words = next(said, "") + (_options_note(key) if has_groups else "")
                lines += _entry(key, hint, _default(field), words)
            seen.add(key)
    return "\n".join(lines)


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


def _entry(key: str, hint: Any, default: str, doc: str) -> list[str]:
    if key == OPEN_KEY:
        key, kind = f"{OPEN_KEY}.FIELD", "any"
    else:
        kind = f"{type_name(hint)}, {default}"
    text = textwrap.wrap(f"[{kind}] {doc}", 118 - HELP_COLUMN, break_on_hyphens=False)
    head = f"  {key:<{HELP_COLUMN - 3}} "
    return [head + text[0], *(" " * HELP_COLUMN + line for line in text[1:])]
