"""`parallel.callbacks`: classes of the user's own, found by their import path."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from gooseslo.errors import ConfigError, Fault
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
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise _fault(path, "is no import path", "package.module:Class")
    try:
        found = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise _fault(path, f"cannot be imported: {error}", "is its folder on PYTHONPATH?") from error
    except AttributeError as error:
        raise _fault(path, f"{module} has no {name}", "package.module:Class") from error
    if not (isinstance(found, type) and issubclass(found, PipelineCallback)):
        rule = "is no subclass of gooseslo.parallel.pipeline.callbacks.PipelineCallback"
        raise _fault(path, rule, "derive it, and override what it wants to know")
    return found


def _fault(path: str, rule: str, way_out: str) -> ConfigError:
    return ConfigError(Fault(key=_KEY, value=path, rule=rule, way_out=way_out))
