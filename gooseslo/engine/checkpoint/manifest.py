"""The table of contents of a step folder: which file holds which box of which tensor. Written last, read first."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from gooseslo.errors import CheckpointError
from gooseslo.parallel.tensor.layouts import Box

FORMAT = 1
FILE_NAME = "manifest.json"
MASTER = "master"
"""Prefix of a 16-bit weight's fp32 master among the optimizer's tensors: master/transformer.wte.weight."""
NUMBER = "#"
"""Between a tensor's name and the number of one of its parts, in the key of what is stored; no name has it."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One box of a tensor, and where it is stored."""

    file: str
    key: str
    """Name of the stored tensor in that file."""
    box: Box
    """(start, stop) by dim in the full tensor."""
    offset: tuple[int, ...]
    """Where the box begins in the stored tensor; a fused weight stores several boxes in one."""


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """A full tensor as the sum of its pieces."""

    shape: tuple[int, ...]
    dtype: str
    """torch's name: float32."""
    pieces: tuple[Piece, ...]

    def check_cover(self, name: str) -> None:
        """CheckpointError unless the pieces cover the tensor exactly once."""
        for index, piece in enumerate(self.pieces):
            inside = len(piece.box) == len(self.shape) and all(
                0 <= start < stop <= size for (start, stop), size in zip(piece.box, self.shape, strict=True)
            )
            if not inside:
                raise CheckpointError(f"{name}: box {piece.box} lies outside the tensor of shape {self.shape}")
            for other in self.pieces[:index]:
                if intersect(piece.box, other.box) is not None:
                    raise CheckpointError(f"{name}: {other.file} and {piece.file} both hold a part of box {piece.box}")
        held = sum(num_elements(piece.box) for piece in self.pieces)
        if held != prod(self.shape):
            raise CheckpointError(f"{name}: the files hold {held} of its {prod(self.shape)} elements")


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """What a file of the folder must be."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything that a reader needs before it opens another file."""

    versions: Mapping[str, str]
    """Of gooseslo and the libraries that wrote it."""
    topology: Mapping[str, int]
    """tp, pp and dp of the run that wrote it; a reader may have any other."""
    tensors: Mapping[str, TensorEntry]
    """By the Hugging Face model's own names."""
    optimizer: Mapping[str, TensorEntry] = field(default_factory=dict)
    """State by `<what>/<parameter>`: exp_avg/transformer.wte.weight."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Other names of a tensor: alias to the name it is stored under."""
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Write manifest.json with a digest of its own content."""
        content = asdict(self)
        text = json.dumps({**content, "digest": _digest(content)}, indent=1)
        (folder / FILE_NAME).write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a step folder; CheckpointError if it is absent, damaged or of a newer format."""
        path = folder / FILE_NAME
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            version = content["format"]
        except FileNotFoundError:
            raise CheckpointError(f"{folder}: no checkpoint: {FILE_NAME} is absent (it is written last)") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from None
        if version != FORMAT:
            raise CheckpointError(
                f"{path}: format {version!r}, but this version of gooseslo reads format {FORMAT}"
                "\n  read it with the version of gooseslo that wrote it, or a newer one"
            )
        digest = content.pop("digest", None)
        if digest != _digest(content):
            raise CheckpointError(f"{path}: changed since it was written (its digest does not match its content)")
        return cls(
            versions=content["versions"],
            topology=content["topology"],
            tensors=_entries(content["tensors"]),
            optimizer=_entries(content["optimizer"]),
            tied=content["tied"],
            files={name: FileEntry(**entry) for name, entry in content["files"].items()},
        )

    def check_sizes(self, folder: Path) -> None:
        """CheckpointError unless every file is there with its size; quick, reads none of them."""
        for name, entry in self.files.items():
            try:
                found = (folder / name).stat().st_size
            except OSError:
                raise CheckpointError(f"{folder}: {name} is missing") from None
            if found != entry.bytes:
                raise CheckpointError(f"{folder}: {name} has {found} bytes, the manifest says {entry.bytes}")

    def check_content(self, folder: Path, name: str) -> None:
        """CheckpointError unless a file's SHA-256 is the one it was written with."""
        if file_entry(folder / name).sha256 != self.files[name].sha256:
            raise CheckpointError(f"{folder}: {name} changed since it was written (its SHA-256 does not match)")

    def canonical(self, name: str) -> str:
        """The name that a tensor, or a parameter's optimizer state, is stored under."""
        return canonical_name(name, self.tied)


def canonical_name(key: str, tied: Mapping[str, str]) -> str:
    """`key` with a tied alias replaced, also after an optimizer prefix and before a part's number: exp_avg/wte#1."""
    name, mark, number = key.partition(NUMBER)
    prefix, slash, parameter = name.rpartition("/")
    return prefix + slash + tied.get(parameter, parameter) + mark + number


def tensor_name(key: str) -> str:
    """The name of the tensor that a stored part belongs to."""
    return key.partition(NUMBER)[0]


def file_entry(path: Path) -> FileEntry:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileEntry(bytes=file.tell(), sha256=digest)


def intersect(a: Box, b: Box) -> Box | None:
    """The box common to two; None if there is none. Two scalars share their one element."""
    common = tuple((max(a0, b0), min(a1, b1)) for (a0, a1), (b0, b1) in zip(a, b, strict=True))
    return common if all(start < stop for start, stop in common) else None


def num_elements(box: Box) -> int:
    """Elements in a box."""
    return prod(stop - start for start, stop in box)


def _digest(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _entries(content: Mapping[str, Any]) -> dict[str, TensorEntry]:
    return {
        name: TensorEntry(
            shape=tuple(entry["shape"]),
            dtype=entry["dtype"],
            pieces=tuple(
                Piece(
                    file=piece["file"],
                    key=piece["key"],
                    box=tuple((start, stop) for start, stop in piece["box"]),
                    offset=tuple(piece["offset"]),
                )
                for piece in entry["pieces"]
            ),
        )
        for name, entry in content.items()
    }
