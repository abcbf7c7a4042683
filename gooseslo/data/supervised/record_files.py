"""The .jsonl files that a run of records names; imports nothing that takes long, since it is asked before all else."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gooseslo.data.text.corpus import SPLITS
from gooseslo.data.text.records import BadRecordError, read_object
from gooseslo.data.text.text_files import Source, read_sources, record_lines
from gooseslo.errors import DataError

_BATCH = 512
"""Records; more at once are no faster."""


class RecordFiles:
    """The .jsonl files of each split; relative paths are taken from `base_dir`. DataError for what cannot be used."""

    def __init__(self, *, train: Any, valid: Any = None, test: Any = None, base_dir: Path):
        given = {"train": train, "valid": valid, "test": test}
        self.sources: dict[str, tuple[Source, ...]] = {
            split: read_sources(given[split], key=f"data.{split}", base_dir=base_dir, endings=(".jsonl",))
            for split in SPLITS
            if given[split] is not None
        }
        if "train" not in self.sources:
            raise DataError("data.train: no file given\n  give data.train=FILE.jsonl, or a list")

    def map(self, split: str, function: Callable[[dict[str, Any]], Any]) -> Iterator[Any]:
        """`function` of every record; a BadRecordError that it raises becomes a DataError of the file and line."""
        return (found for found, _ in self._located(split, function))

    def map_batches(
        self, split: str, function: Callable[[dict[str, Any]], Any], further: Callable[[list[Any]], Sequence[Any]]
    ) -> Iterator[Any]:
        """The same, and then `further` of many of its results at once: one value each, or the BadRecordError of one."""
        located = self._located(split, function)
        while batch := list(itertools.islice(located, _BATCH)):
            for value, (_, fault) in zip(further([found for found, _ in batch]), batch, strict=True):
                if isinstance(value, BadRecordError):
                    raise fault(value)
                yield value

    def _located(
        self, split: str, function: Callable[[dict[str, Any]], Any]
    ) -> Iterator[tuple[Any, Callable[[BadRecordError], DataError]]]:
        """With each result the function that turns what is wrong with its record into an error of file and line."""
        for source in self.sources[split]:
            for number, line in record_lines(source):
                fault = functools.partial(_fault, source, number)
                try:
                    found = function(read_object(line))
                except BadRecordError as bad:
                    raise fault(bad) from None
                yield found, fault


def _fault(source: Source, number: int, bad: BadRecordError) -> DataError:
    return source.fault(bad.rule, line=number, way_out=bad.way_out)
