"""What `input=` names: files, folders, globs, data-set folders or standard input, as an ordered list of sources.

Everything that names and sizes can show to be unusable is refused here, before anything starts.
"""

from __future__ import annotations

import glob
import json
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gooseslo.data.indexed.names import is_prepared, owner_of, sidecar_path
from gooseslo.data.indexed.sidecar import Sidecar
from gooseslo.data.preprocess.streams import COMPRESSIONS, open_stream
from gooseslo.data.text.records import BYTE_ORDER_MARK
from gooseslo.errors import DataError

STANDARD_INPUT = "-"
FORMATS = {".txt": "txt", ".jsonl": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
"""Ending of a file -> its format; all but the last may be compressed."""
KNOWN_ENDINGS = ".txt, .jsonl, .json (a record a line), these also with .gz or .zst, and .parquet"
_MAGIC = {b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zst"}
_FAULTS_SHOWN = 4
_ENDINGS_SHOWN = 5
_NAME_SHOWN = 200


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file, one data-set folder, or standard input."""

    name: str
    """As it was given; a file of a folder or glob by the path that leads there."""
    path: Path
    format: str
    """txt, jsonl, parquet or arrow (a data-set folder)."""
    compression: str = ""
    parts: tuple[Path, ...] = ()
    """The files to be read: those of a data-set folder, else the path alone."""
    num_bytes: int = 0
    """On the disk; 0 for standard input."""
    changed_ns: int = 0

    @property
    def is_standard_input(self) -> bool:
        return self.name == STANDARD_INPUT

    def stamp(self) -> list[object]:
        """JSON values that change when the content may have changed."""
        return [self.name, self.num_bytes, self.changed_ns, self.format]

    def has_changed(self) -> bool:
        """Whether it is not the file any more that it was when it was found."""
        try:
            return not self.is_standard_input and (self.num_bytes, self.changed_ns) != _size_and_time(self.parts)
        except OSError:
            return True


def find_sources(
    value: Any, *, base_dir: Path, file_format: str | None = None, output: Path | None = None
) -> list[Source]:
    """The sources that `input=` names, in the order given; those of a folder or glob sorted by name.

    `file_format` (txt or jsonl) is that of every file and of standard input, whatever the ending. A folder or glob does
    not name prepared files, nor what an earlier process has made of the prefix `output`. DataError with every input
    that cannot be used.
    """
    items = [str(item) for item in value] if isinstance(value, (list, tuple)) else [str(value)]
    sources: list[Source] = []
    faults = [] if items else ["an empty list\n  input=FILE, or a list of files, folders and globs"]
    for item in items:
        try:
            names = _expand(item, base_dir, file_format, output)
        except DataError as error:
            faults.append(str(error))
            continue
        except OSError as error:
            faults.append(f"{item[:_NAME_SHOWN]}: cannot be read: {error.strerror or error}")
            continue
        for name in names:
            try:
                sources.append(_source(name, base_dir, file_format))
            except DataError as error:
                faults.append(str(error))
    counts = Counter(source.path for source in sources)
    faults += [f"{path}: named twice\n  each input is read once" for path, count in counts.items() if count > 1]
    if faults:
        more = f"\ninput: and {len(faults) - _FAULTS_SHOWN} more" if len(faults) > _FAULTS_SHOWN else ""
        raise DataError("\n".join(f"input: {fault}" for fault in faults[:_FAULTS_SHOWN]) + more)
    return sources


def _expand(item: str, base_dir: Path, file_format: str | None, output: Path | None) -> list[str]:
    """The names of files (and data-set folders) that an item stands for."""
    path = base_dir / item
    if not item or "\0" in item:
        raise DataError(f"{item!r}: not a name")
    if item == STANDARD_INPUT:
        return [item]
    if path.is_dir() and not _is_data_set(path):
        found = list(_files_below(path))
        texts = [name for name in found if not _is_prepared(path, name, output)]
        if names := [str(Path(item) / name) for name in _usable(texts, file_format)]:
            return names
        if _usable(found, file_format):
            raise DataError(f"{item}: only prepared files lie in this folder")
        raise DataError(f"{item}: no file of a known ending in this folder{_shown(found)}\n  known: {KNOWN_ENDINGS}")
    if not path.exists() and glob.has_magic(item):
        matches = sorted(glob.glob(item, root_dir=base_dir, recursive=True))
        names = [name for name in matches if not (base_dir / name).is_dir()]
        if texts := [name for name in names if not _is_prepared(base_dir, name, output)]:
            return texts
        raise DataError(f"{item}: {'only prepared files fit' if names else 'no file fits'} this pattern")
    return [item]


def _is_prepared(folder: Path, name: str, output: Path | None) -> bool:
    """Whether a file below `folder` is a prepared data set's, by its own name or that of a folder above it."""
    path = Path(name)
    for each in (folder / part for part in (path, *path.parents) if part.name):
        prefix = owner_of(each)
        if prefix is None:
            continue
        if output is not None and prefix.name == output.name and prefix.parent.resolve() == output.parent.resolve():
            return True
        if is_prepared(prefix) and not _is_their_text(each, prefix):
            return True
    return False


def _is_their_text(path: Path, prefix: Path) -> bool:
    """Whether what lies beside tokens as PREFIX.json is not facts about them: it may be the text they were made of."""
    try:
        return path == sidecar_path(prefix) and not Sidecar.is_beside(prefix)
    except OSError:  # is said when it is opened
        return True


def _shown(names: list[str]) -> str:
    """What a folder holds, for a message."""
    if not names:
        return ", which holds no file"
    endings = Counter("".join(Path(name).suffixes[-1:]) or "no ending" for name in names)
    return ", but " + ", ".join(f"{count} of {ending}" for ending, count in endings.most_common(_ENDINGS_SHOWN))


def _is_data_set(path: Path) -> bool:
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def _files_below(path: Path) -> Iterator[str]:
    """Paths from `path` on, without hidden ones, sorted folder by folder; DataError for a folder that cannot be read.

    Links to folders are followed, but for those that lead back to where they are.
    """

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error

    for folder, subfolders, names in os.walk(path, onerror=fail, followlinks=True):
        above = Path(folder).resolve()
        visible = sorted(name for name in subfolders if not name.startswith("."))
        subfolders[:] = [name for name in visible if not above.is_relative_to(Path(folder, name).resolve())]
        for name in sorted(names):
            if not name.startswith("."):
                yield str(Path(folder, name).relative_to(path))


def _usable(names: Iterable[str], file_format: str | None) -> list[str]:
    return [name for name in names if file_format or format_of(name)[0]]


def format_of(name: str) -> tuple[str, str]:
    """Format and compression of a file by its ending; "" for what is unknown or absent."""
    endings = [ending.lower() for ending in Path(name).suffixes]
    compression = endings.pop()[1:] if endings and endings[-1][1:] in COMPRESSIONS else ""
    file_format = FORMATS.get(endings[-1], "") if endings else ""
    return ("" if file_format == "parquet" and compression else file_format), compression


def _source(name: str, base_dir: Path, file_format: str | None) -> Source:
    """DataError, without the key, for what cannot be read."""
    if name == STANDARD_INPUT:
        return _standard_input(file_format)
    path = base_dir / name
    if path.is_dir():
        return _data_set(name, path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise DataError(f"{name}: not a file\n  what a pipe holds is read by input=-")
        by_ending, compression = format_of(name)
        if not (chosen := file_format or by_ending):
            way_out = f"known: {KNOWN_ENDINGS}; or say what it is: format=txt or format=jsonl"
            raise DataError(f"{name}: the ending is not known\n  {way_out}")
        num_bytes, changed_ns = _size_and_time((path,))
        source = Source(
            name=name,
            path=path.resolve(),
            format=chosen,
            compression=compression,
            parts=(path,),
            num_bytes=num_bytes,
            changed_ns=changed_ns,
        )
        with path.open("rb"):  # may be read
            if num_bytes == 0 or (compression and not next(iter(open_stream(path, compression)), b"")):
                raise DataError(f"{name}: the file is empty")
    except FileNotFoundError:
        raise DataError(f"{name}: no such file") from None
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror or error}") from None
    return source


def _standard_input(file_format: str | None) -> Source:
    """It has no ending: its first bytes say how it is compressed, and a `{` that it holds records."""
    if sys.stdin is None:  # as after `<&-`
        raise DataError(f"{STANDARD_INPUT}: standard input is closed")
    start = sys.stdin.buffer.peek(1)  # type: ignore[union-attr]  # waits for the first bytes, and leaves them
    if not start:
        raise DataError(f"{STANDARD_INPUT}: standard input is empty")
    compression = next((name for magic, name in _MAGIC.items() if start.startswith(magic)), "")
    if compression and file_format is None:
        raise DataError(
            f"{STANDARD_INPUT}: standard input is compressed\n  say what it holds: format=txt or format=jsonl"
        )
    shown = "jsonl" if start.removeprefix(BYTE_ORDER_MARK).lstrip().startswith(b"{") else "txt"
    return Source(name=STANDARD_INPUT, path=Path(STANDARD_INPUT), format=file_format or shown, compression=compression)


def _data_set(name: str, path: Path) -> Source:
    """A folder that `datasets.save_to_disk` wrote."""
    if (path / "dataset_dict.json").is_file():
        splits = sorted(entry.name for entry in path.iterdir() if (entry / "state.json").is_file())
        raise DataError(f"{name}: a data set of several splits\n  name one: {', '.join(f'{name}/{s}' for s in splits)}")
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        parts = tuple(path / part["filename"] for part in state["_data_files"])
        num_bytes, changed_ns = _size_and_time(parts)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{name}: a damaged data-set folder: {error}") from error
    if not parts:
        raise DataError(f"{name}: the data set is empty")
    return Source(
        name=name, path=path.resolve(), format="arrow", parts=parts, num_bytes=num_bytes, changed_ns=changed_ns
    )


def _size_and_time(parts: tuple[Path, ...]) -> tuple[int, int]:
    stats = [part.stat() for part in parts]
    return sum(each.st_size for each in stats), max((each.st_mtime_ns for each in stats), default=0)
