"""The default corpus: the source text of the running interpreter's standard library, real text on every machine."""

from __future__ import annotations

import hashlib
import os
import platform
import sysconfig
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath

from gooseslo.data.text.corpus import SPLITS, Piece
from gooseslo.errors import DataError

# Tables, generated text and a whole editor say little about how code is written; nor are tests the library.
_EXCLUDED_TOP = frozenset({"encodings", "pydoc_data", "idlelib"})
_EXCLUDED_ANYWHERE = frozenset({"test", "tests", "site-packages", "dist-packages", "__pycache__"})


class StdlibCorpus:
    """About 10 MB of Python, split by file into about 90, 5 and 5 percent by a hash of the file's relative path."""

    name = "stdlib"
    splits = SPLITS

    def __init__(self, root: Path | None = None):
        self.root = root or Path(sysconfig.get_paths()["stdlib"])

    @cached_property
    def files(self) -> dict[str, list[PurePosixPath]]:
        """Relative paths by split, sorted. DataError where the interpreter came without its sources."""
        found: dict[str, list[PurePosixPath]] = {split: [] for split in SPLITS}
        for folder, subfolders, names in os.walk(self.root):
            place = PurePosixPath(Path(folder).relative_to(self.root).as_posix())
            excluded = _EXCLUDED_ANYWHERE | (_EXCLUDED_TOP if place == PurePosixPath() else frozenset())
            subfolders[:] = [name for name in subfolders if name not in excluded]
            for name in names:
                if name.endswith(".py") and Path(folder, name).stat().st_size:
                    found[split_of(place / name)].append(place / name)
        for files in found.values():
            files.sort()
        if not all(found.values()):
            raise DataError(
                f"data=stdlib: {self.root} does not hold the sources of the standard library\n"
                "  give text of your own: data=text data.train=FILE.txt"
            )
        return found

    def identity(self) -> list[object]:
        """The interpreter's version, and name and size of each file."""
        names = [(str(name), (self.root / name).stat().st_size) for split in SPLITS for name in self.files[split]]
        return [platform.python_version(), *names]

    def pieces(self, split: str) -> Iterator[Piece]:
        """One document a file; a file that is not UTF-8 is skipped (a few say so in their first line)."""
        for name in self.files[split]:
            try:
                yield Piece((self.root / name).read_text(encoding="utf-8"), ends_document=True)
            except UnicodeDecodeError:
                continue


def split_of(relative: PurePosixPath) -> str:
    """The split of a file, from its path alone: a new file moves no other."""
    percent = int.from_bytes(hashlib.sha256(str(relative).encode()).digest()[:8]) % 100
    return "train" if percent < 90 else "valid" if percent < 95 else "test"
