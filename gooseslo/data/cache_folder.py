"""A folder of prepared data that is made once: found again by its name, whole or not there, whoever makes it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from gooseslo.errors import DataError
from gooseslo.staging import create_staging, publish, remove_stale

Prepared = TypeVar("Prepared")


def folder_of(cache_dir: Path, name: str, facts: Sequence[object]) -> Path:
    """Where data is kept that depends on these JSON values alone."""
    return cache_dir.absolute() / f"{name}-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]}"


def find_or_make(final: Path, *, read: Callable[[Path], Prepared | None], make: Callable[[Path], None]) -> Prepared:
    """What `read` finds in `final` (None: absent or damaged), after `make` has filled it where need be.

    Two processes may make the same at once: the first whole one stays. DataError where nothing can be kept there; what
    `make` raises leaves nothing behind.
    """
    remove_stale(final.parent)
    if (found := read(final)) is not None:
        return found
    try:
        staging = create_staging(final)
    except OSError as error:
        way_out = "give another folder: XDG_CACHE_HOME=DIR gooseslo ..."
        raise DataError(f"no prepared data can be kept in {final.parent}: {error.strerror}\n  {way_out}") from error
    try:
        make(staging)
        return _publish(staging, final, read)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: other data is kept there
            final.parent.rmdir()


def _publish(staging: Path, final: Path, read: Callable[[Path], Prepared | None]) -> Prepared:
    """Rename into place; where another process was faster its folder is as good, and a damaged one gives way."""
    try:
        publish(staging, final)
    except OSError:
        if (found := read(final)) is not None:
            return found
        damaged = create_staging(final)
        final.rename(damaged)
        shutil.rmtree(damaged, ignore_errors=True)
        publish(staging, final)
    prepared = read(final)
    assert prepared is not None
    return prepared
