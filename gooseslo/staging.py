"""Folders and files that appear under their final name whole or not at all, whatever kills the writer."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def create_staging(final: Path) -> Path:
    """Create a hidden folder beside `final`, named after this machine and process, to be filled and then published."""
    final.parent.mkdir(parents=True, exist_ok=True)
    staging = final.parent / f".{final.name}.tmp-{_host()}-{os.getpid()}-{secrets.token_hex(3)}"
    staging.mkdir()
    return staging


def publish(staging: Path, final: Path) -> None:
    """Flush everything in `staging` to the disk and rename it to `final`; OSError if `final` is a non-empty folder."""
    mode = staging.stat().st_mode & 0o666  # what the user's umask allows: safetensors makes files for the owner alone
    for folder, _, names in os.walk(staging):
        for name in names:
            Path(folder, name).chmod(mode)
            flush(Path(folder, name))
        flush(Path(folder))
    os.rename(staging, final)
    flush(final.parent)


@contextmanager
def staged_folder(final: Path) -> Iterator[Path]:
    """A folder to fill; published as `final` when the block ends, removed when it fails."""
    staging = create_staging(final)
    try:
        yield staging
        publish(staging, final)
    except BaseException:  # Ctrl-C too must leave nothing behind
        shutil.rmtree(staging, ignore_errors=True)
        raise


@contextmanager
def staged_file(final: Path) -> Iterator[Path]:
    """A file to write; it replaces `final` in one step when the block ends, and is removed when it fails."""
    staging = final.parent / f".{final.name}.tmp-{_host()}-{os.getpid()}-{secrets.token_hex(3)}"
    try:
        yield staging
        flush(staging)
        os.replace(staging, final)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise
    flush(final.parent)


def write_text(path: Path, text: str) -> None:
    """Replace the content of `path` in one step."""
    with staged_file(path) as staging:
        staging.write_text(text, encoding="utf-8")


def remove_stale(parent: Path) -> None:
    """Remove what dead processes of this machine left in `parent`; of other machines' nothing is known here."""
    for path in parent.glob(".*.tmp-*"):
        host, _, rest = path.name.rpartition(".tmp-")[2].partition("-")
        pid = rest.partition("-")[0]
        if host != _host() or not pid.isdecimal() or _alive(int(pid)):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _host() -> str:
    return socket.gethostname().replace("-", "_").replace("/", "_")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process
        return True
    return True
