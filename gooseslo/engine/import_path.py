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
        imported = importlib.import_module(module)
    except ImportError as error:
        raise import_fault(key, path, f"cannot be imported: {error}", "is its folder on PYTHONPATH?") from error
    except (Exception, SystemExit) as error:  # a script without `if __name__ == "__main__"` ends the process
        rule = f"{module} fails while it is imported: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise import_fault(key, path, rule, f'try: python -c "import {module}"') from error
    try:
        return getattr(imported, name)
    except AttributeError as error:
        raise import_fault(key, path, f"{module} has no {name}", form) from error


def import_fault(key: str, path: str, rule: str, way_out: str) -> ConfigError:
    """What is wrong with the path or with what it names."""
    return ConfigError(Fault(key=key, value=path, rule=rule, way_out=way_out))
