"""`parallel.callbacks`: classes of the user's own, found by their import path."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from gooseslo.engine.import_path import import_by_path, import_fault
from gooseslo.parallel.pipeline.callbacks import PipelineCallback

_KEY = "parallel.callbacks"


def load_callbacks(paths: Iterable[str]) -> list[PipelineCallback]:
    """A new object of each class, in order; ConfigError for a path that names none.

    A path is `package.module:Class`; the class is a PipelineCallback and is made without arguments.
    """
    return [_load(path)() for path in paths]


def check_callbacks(paths: Iterable[str]) -> None:
    """ConfigError for the first path that names no such class; their modules are imported."""
    for path in paths:
        _load(path)


def _load(path: str) -> type[PipelineCallback]:
    found = import_by_path(path, key=_KEY, what="Class")
    if not (isinstance(found, type) and issubclass(found, PipelineCallback)):
        rule = "is no subclass of gooseslo.parallel.pipeline.callbacks.PipelineCallback"
        raise import_fault(_KEY, path, rule, "derive it, and override what it wants to know")
    if abstract := sorted(getattr(found, "__abstractmethods__", ())):
        raise import_fault(_KEY, path, f"is abstract: {', '.join(abstract)}", "define what it leaves open")
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        rule = f"cannot be made without arguments: {error}"
        raise import_fault(_KEY, path, rule, "give them defaults, or derive a class that sets them") from error
    return found
