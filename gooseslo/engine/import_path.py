"""`package.module:name`: what a user names in the configuration and writes in Python."""

from __future__ import annotations

import importlib
import re
from typing import Any

from gooseslo.errors import ConfigError, Fault


def import_by_path(path: str, *, key: str, what: str) -> Any:
    """The object that the path under `key` names; `what` it should be, in a user's words: Class, function.

    ConfigError where the path names nothing, or its module fails while it is imported.
    """
    module, _, name = path.partition(":")
    form = f"package.module:{what}"
    if not re.fullmatch(r"\w+(\.\w+)*:\w+", path):
        raise import_fault(key, path, "is no import path", form)
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise import_fault(key, path, f"cannot be imported: {error}", "is its folder on PYTHONPATH?") from error
    except AttributeError as error:
        raise import_fault(key, path, f"{module} has no {name}", form) from error
    except Exception as error:
        rule = f"{module} fails while it is imported: {type(error).__name__}: {error}"
        raise import_fault(key, path, rule, f'try: python -c "import {module}"') from error


def import_fault(key: str, path: str, rule: str, way_out: str) -> ConfigError:
    """What is wrong with the path or with what it names."""
    return ConfigError(Fault(key=key, value=path, rule=rule, way_out=way_out))
