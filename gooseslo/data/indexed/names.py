"""The names that belong to a prefix: what lies beside PREFIX.bin, and how to tell it from other people's files."""

from __future__ import annotations

import os
from pathlib import Path

_TOKENS, _INDEX, _FACTS, _REJECTED, _TOKENIZER, _CACHE = (
    ".bin",
    ".idx",
    ".json",
    ".rejected.jsonl",
    ".tokenizer",
    ".cache",
)
_ENDINGS = (_TOKENS, _INDEX, _FACTS, _REJECTED, _TOKENIZER, _CACHE)


def bin_path(prefix: Path) -> Path:
    """The tokens of a prefix; with_suffix would cut a prefix such as `wiki-1.0`."""
    return _named(prefix, _TOKENS)


def idx_path(prefix: Path) -> Path:
    """Where each document lies in the tokens."""
    return _named(prefix, _INDEX)


def sidecar_path(prefix: Path) -> Path:
    """What made the tokens."""
    return _named(prefix, _FACTS)


def rejected_path(prefix: Path) -> Path:
    """The records that were left out."""
    return _named(prefix, _REJECTED)


def tokenizer_path(prefix: Path) -> Path:
    """The folder of a tokenizer that was trained on the input."""
    return _named(prefix, _TOKENIZER)


def cache_path(prefix: Path) -> Path:
    """The folder of index arrays that training works out."""
    return _named(prefix, _CACHE)


def prefix_of(path: Path) -> Path:
    """The prefix that is meant: PREFIX, or the name of one of its two files."""
    return path.with_suffix("") if path.suffix in (_TOKENS, _INDEX) and path.is_file() else path


def owner_of(path: Path) -> Path | None:
    """The prefix that a file or folder would belong to by its name; None if by no ending."""
    ending = next((ending for ending in sorted(_ENDINGS, key=len, reverse=True) if path.name.endswith(ending)), None)
    if ending is None or path.name == ending:
        return None
    return path.parent / path.name.removesuffix(ending)


def is_prepared(prefix: Path) -> bool:
    """Whether there are tokens and an index of that name."""
    return bin_path(prefix).is_file() and idx_path(prefix).is_file()


def stored_name(name: str, *, base_dir: Path, prefix: Path) -> str:
    """How a tokenizer is named in PREFIX.json, so that it is found from anywhere: a folder from that of the prefix on.

    `name` is that of a folder, relative to `base_dir`, or of the Hub; an absolute path stays one.
    """
    if os.path.isabs(name) or not name or not (base_dir / name).is_dir():
        return name
    return os.path.relpath(os.path.realpath(base_dir / name), os.path.realpath(prefix.parent))


def _named(prefix: Path, ending: str) -> Path:
    return prefix.parent / f"{prefix.name}{ending}"
