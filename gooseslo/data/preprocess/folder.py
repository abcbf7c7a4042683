"""The hidden folder beside an output in which it grows: locked by one process, with a journal of what is safe in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gooseslo.data.indexed.names import bin_path, idx_path, rejected_path, sidecar_path, tokenizer_path
from gooseslo.data.preprocess.chunks import Position
from gooseslo.errors import DataError, DataWriteError
from gooseslo.staging import flush, publish, write_text

_FORMAT = 1
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(kw_only=True)
class Tally:
    """What has been written so far; sums over all runs that were gone on with."""

    documents: int = 0
    tokens: int = 0
    empty: int = 0
    rejected: int = 0
    text_bytes: int = 0
    largest_id: int = -1
    inner_eods: int = 0
    """End-of-document ids within documents, which a reader would take for their ends."""
    source_documents: list[int] = field(default_factory=list)
    """Documents of each source that has given any."""


@dataclass(frozen=True, kw_only=True)
class Journal:
    """All that going on needs; the sizes of the files that belong to it are in `sizes`."""

    identity: dict[str, Any]
    """What must be the same: inputs, tokenizer, options."""
    position: Position = field(default_factory=Position)
    tally: Tally = field(default_factory=Tally)
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of each growing file."""
    seconds: float = 0.0
    finished: bool = False
    """Everything is written; the files are only to be renamed."""

    def to_json(self) -> str:
        return json.dumps({"format": _FORMAT, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> Journal | None:
        """None for what this version did not write."""
        try:
            content = json.loads(text)
            if content.pop("format") != _FORMAT:
                return None
            position, tally = Position(**content.pop("position")), Tally(**content.pop("tally"))
            return cls(position=position, tally=tally, **content)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


class WorkFolder:
    """A context manager; inside it no other process can work on the same output."""

    def __init__(self, prefix: Path):
        self.prefix = prefix
        self.path = prefix.parent / f".{prefix.name}.preprocess"
        self.tokens, self.lengths = self.path / "tokens.bin", self.path / "lengths.bin"
        self.rejected, self.tokenizer = self.path / "rejected.jsonl", self.path / "tokenizer"
        self.index, self.sidecar = self.path / "index.idx", self.path / "facts.json"
        self._journal = self.path / "journal.json"
        self._lock = -1
        self._made = [parent for parent in prefix.parents if not parent.exists()]
        """Folders that are made for the output, the innermost first."""

    def __enter__(self) -> WorkFolder:
        """DataError if another process has it, or it cannot be made."""
        try:
            while not self._locked():
                pass
        except BlockingIOError:
            raise DataError(
                f"output={self.prefix}: another process is writing it (its folder is {self.path})"
            ) from None
        except OSError as error:
            for made in (self.path, *self._made):
                with contextlib.suppress(OSError):  # not there, or another's
                    made.rmdir()
            kind = DataWriteError if error.errno in _FULL else DataError
            raise kind(f"output={self.prefix}: cannot be written: {error.strerror}") from error
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._lock)

    def _locked(self) -> bool:
        """Whether the lock that was taken is that of the folder as it is now, and not of one just removed."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(self._lock), os.stat(self.path / "lock")):
                return True
        except FileNotFoundError:
            pass
        except OSError:
            os.close(self._lock)
            raise
        os.close(self._lock)
        return False

    @property
    def is_used(self) -> bool:
        """Whether an earlier process left anything in it."""
        return any(path.name != "lock" for path in self.path.iterdir())

    def clear(self) -> None:
        """Remove what an earlier process left."""
        for path in self.path.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()

    def remove(self) -> None:
        """Leave nothing, not even the folders that were made for the output."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # the output is in it
            for parent in self._made:
                parent.rmdir()

    def read_journal(self) -> Journal | None:
        """What an earlier process left to go on from; None if that is nothing."""
        try:
            return Journal.from_json(self._journal.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def write_journal(self, journal: Journal) -> None:
        """Replaces the last one in one step. What it speaks of must be on the disk."""
        write_text(self._journal, journal.to_json())

    def publish(self, *, resumable: bool = False) -> None:
        """Give every file its name, the index last; goes on where a killed process stopped. DataWriteError."""
        with writing(self.prefix, resumable=resumable):
            for ours, final in self._names():
                if ours.is_dir():
                    publish(ours, final)
                elif ours.exists():
                    flush(ours)
                    os.rename(ours, final)
            flush(self.prefix.parent)
        self.remove()

    def _names(self) -> list[tuple[Path, Path]]:
        return [
            (self.tokens, bin_path(self.prefix)),
            (self.rejected, rejected_path(self.prefix)),
            (self.tokenizer, tokenizer_path(self.prefix)),
            (self.sidecar, sidecar_path(self.prefix)),
            (self.index, idx_path(self.prefix)),
        ]


def existing_output(prefix: Path) -> list[Path]:
    """The files of the output that are there."""
    paths = [bin_path(prefix), idx_path(prefix), sidecar_path(prefix), rejected_path(prefix), tokenizer_path(prefix)]
    return [path for path in paths if path.exists()]


def check_free(prefix: Path, *, output: str) -> None:
    """DataError if there is an output of that name, typed as `output`."""
    try:
        found = existing_output(prefix)
    except OSError as error:  # such as a name that is too long
        raise DataError(f"output={output}: cannot be made: {error.strerror}") from error
    if found:
        shown = ", ".join(path.name for path in found)
        raise DataError(f"output={output}: exists ({shown})\n  give another name, or remove it")


@contextlib.contextmanager
def writing(prefix: Path, *, resumable: bool) -> Iterator[None]:
    """What cannot be written, as a failure at run time."""
    try:
        yield
    except OSError as error:
        way_out = "make room" if error.errno in _FULL else "see to it"
        way_out += ", then go on with resume=true" if resumable else ", then start again"
        reason = error.strerror or str(error)
        raise DataWriteError(f"output={prefix}: cannot be written: {reason}\n  {way_out}") from error
