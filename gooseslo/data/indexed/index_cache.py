"""Index arrays kept beside the data: worked out once on a machine, mapped by every other process and later run.

No process waits for another but for a file's lock, so that a data set can be opened by any number of ranks at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import tokenize
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from gooseslo.staging import remove_stale, staged_file

_FORMAT = 2
_LOCK = ".lock"
_KEPT = 24
"""Arrays of a label: several runs, ranges and seeds have a few epochs each."""


class IndexCache:
    """Integer arrays in one folder, each under the hash of all that it depends on.

    A file holds that hash too: one that is cut short, or is another's, is made anew. Where the folder cannot be written
    (a read-only disk, a full one) arrays are worked out in memory by each process, after one warning.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._warned = False

    def array(
        self,
        facts: Sequence[object],
        build: Callable[[], np.ndarray],
        *,
        stamp: object,
        shape: tuple[int, ...],
        label: str,
    ) -> np.ndarray:
        """The int64 array of this shape that `build` gives, from the cache or into it.

        `facts` and `stamp` are JSON values, of which `stamp` says which data they are about: what is kept about data of
        another stamp, which was replaced, is removed when something is built. Part of the file's name is `label`, and
        of each label the newest are kept. Two processes that ask for the same build it once: the second waits until it
        is there.
        """
        key = hashlib.sha256(json.dumps([_FORMAT, shape, *facts, stamp]).encode()).digest()
        path = self.folder / f"{label}-{_short(stamp)}-{key.hex()[:24]}.npy"
        if (found := _read(path, key, shape)) is not None:
            return found
        try:
            with self._lock():
                if (found := _read(path, key, shape)) is not None:
                    return found
                remove_stale(self.folder)
                built = build()
                self._make_room(label, _short(stamp))
                with staged_file(path) as staging:
                    _write(staging, key, built)
        except OSError as error:
            self._warn(error)
            return build()
        found = _read(path, key, shape)
        return built if found is None else found

    def _make_room(self, label: str, stamp: str) -> None:
        """Remove what is about other data, and the oldest of this label. A process that has them mapped keeps them."""
        ours = []
        for path in self.folder.glob("*-*.npy"):
            if path.name.split("-")[1] != stamp:
                path.unlink(missing_ok=True)
            elif path.name.startswith(f"{label}-"):
                ours.append(path)
        ours.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in ours[_KEPT - 1 :]:
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Of the whole folder; a process that dies gives it up."""
        self.folder.mkdir(exist_ok=True)
        descriptor = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            logging.getLogger(__name__).warning(
                "warning: no index can be kept in %s (%s): every process works it out anew", self.folder, error.strerror
            )
        self._warned = True


def _short(stamp: object) -> str:
    return hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:8]


def _write(path: Path, key: bytes, array: np.ndarray) -> None:
    with path.open("wb") as file:
        np.save(file, np.concatenate([np.frombuffer(key, dtype=np.int64), array.ravel()]), allow_pickle=False)


def _read(path: Path, key: bytes, shape: tuple[int, ...]) -> np.ndarray | None:
    """The array, mapped; None where there is no file, or another than it should be."""
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, tokenize.TokenError):  # of a damaged header
        return None
    head = np.frombuffer(key, dtype=np.int64)
    whole = mapped.dtype == np.int64 and mapped.shape == (len(head) + int(np.prod(shape)),)
    if not whole or not np.array_equal(mapped[: len(head)], head):
        return None
    return np.asarray(mapped)[len(head) :].reshape(shape)  # a plain array over the map: half as slow to index
