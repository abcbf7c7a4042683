"""What `data=indexed` names: parts of prepared files by split, checked one by one and against each other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gooseslo.data.indexed.causal_lm import DatasetForCausalLM, documents_between
from gooseslo.data.indexed.index_cache import IndexCache
from gooseslo.data.indexed.layout import IndexArrays, file_stamp, read_index
from gooseslo.data.indexed.names import bin_path, cache_path, prefix_of
from gooseslo.data.indexed.sidecar import Sidecar
from gooseslo.data.order.blend import DatasetBlender
from gooseslo.data.text.corpus import SPLITS
from gooseslo.data.text.packed import Dataset
from gooseslo.errors import DataError

_BLOCK = 1 << 22
_PROBES, _PROBE_BYTES = 64, 4096


@dataclass(frozen=True, kw_only=True)
class Part:
    """The documents from `start` to `end` of a prepared file, as fractions of them."""

    key: str
    """As typed: data.train[1]."""
    prefix: Path
    weight: float | None = None
    start: float = 0.0
    end: float = 1.0

    def fault(self, error: DataError | str) -> DataError:
        return DataError(f"{self.key}: {error}")

    def documents(self, total: int) -> range:
        """Which of the file's documents they are."""
        return documents_between(self.start, self.end, total)


def read_parts(value: Any, *, key: str, base_dir: Path) -> tuple[Part, ...]:
    """The parts that a configuration value of proven form names; PREFIX.bin or PREFIX.idx mean PREFIX."""
    items = value if isinstance(value, list) else [value]
    keys = [f"{key}[{index}]" for index in range(len(items))] if isinstance(value, list) else [key]
    return tuple(_read_part(item, key=key, base_dir=base_dir) for key, item in zip(keys, items))


def _read_part(item: Any, *, key: str, base_dir: Path) -> Part:
    fields = dict(item) if isinstance(item, Mapping) else {"path": item}
    prefix = prefix_of(base_dir / fields.pop("path"))
    numbers = {name: float(number) for name, number in fields.items() if number is not None}
    return Part(key=key, prefix=prefix, **numbers)


def open_split(
    parts: tuple[Part, ...],
    sequence_length: int,
    *,
    reader: str = "mmap",
    seed: int = 0,
    reset_at_document: bool = False,
) -> DatasetForCausalLM | DatasetBlender:
    """The samples of a split: of its one part, or of all of them blended by weight or size.

    DataError, with the key, for a part that holds none.
    """
    datasets = [
        DatasetForCausalLM(
            part.prefix,
            sequence_length,
            reader,
            split_type=part.key,
            start_weight=part.start,
            end_weight=part.end,
            seed=seed,
            reset_at_document=reset_at_document,
        )
        for part in parts
    ]
    if len(datasets) == 1:
        return datasets[0]
    weights = [part.weight for part in parts if part.weight is not None]
    return DatasetBlender(datasets, weights or None)


def evaluation_warnings(parts: tuple[Part, ...], dataset: Dataset, *, at_most: int) -> Iterator[str]:
    """What an evaluation of so many samples leaves out of a blend, in words; by size it leaves out nothing."""
    if not isinstance(dataset, DatasetBlender):
        return
    num_samples = dataset.first_repeat(at_most)
    if num_samples < min(at_most, len(dataset)):
        ended_by = parts[int(dataset.turns.locate(num_samples, 1)[0][0])]
        yield (
            f"{ended_by.key}: an evaluation has {num_samples} of the {len(dataset)} samples held out: by weight it "
            f"ends where {ended_by.prefix.name} would begin again; without weights it has all of them"
        )
    for part, num_turns in zip(parts, dataset.turns_of_sets(num_samples).tolist()):
        if not num_turns:
            weight = "" if part.weight is None else f"weight={part.weight:g} of {part.prefix.name} "
            yield f"{part.key}: {weight}gives none of the {num_samples} samples of an evaluation"


class Mixture:
    """The prepared files of a run, opened once to be checked; DataError for what is not whole or not one data set."""

    def __init__(self, *, train: Any, valid: Any = None, test: Any = None, base_dir: Path):
        given = {"train": train, "valid": valid, "test": test}
        self.splits = {
            split: read_parts(given[split], key=f"data.{split}", base_dir=base_dir)
            for split in SPLITS
            if given[split] is not None
        }
        self.indices: dict[Path, IndexArrays] = {}
        self.sidecars: dict[Path, Sidecar | None] = {}
        for part in self.parts():
            try:
                self._read(part.prefix)
            except DataError as error:
                raise part.fault(error) from error
        self._check_tokenizers()

    def parts(self) -> Iterator[Part]:
        for parts in self.splits.values():
            yield from parts

    def _read(self, prefix: Path) -> None:
        if prefix in self.indices:
            return
        index = self.indices[prefix] = read_index(prefix)
        sidecar = self.sidecars[prefix] = Sidecar.read(prefix)
        if sidecar is not None:
            sidecar.check_counts(prefix, documents=index.num_documents, tokens=index.num_tokens)

    def _check_tokenizers(self) -> None:
        """Numbers mean other words to another tokenizer."""
        known = [(part, sidecar) for part in self.parts() if (sidecar := self.sidecars[part.prefix]) is not None]
        for part, sidecar in known[1:]:
            first, other = known[0]
            if sidecar.tokenizer_hash != other.tokenizer_hash:
                raise part.fault(
                    f"{part.prefix} was made with another tokenizer ({sidecar.tokenizer}) than {first.key} "
                    f"({other.tokenizer})\n  prepare both with the same one"
                )

    @property
    def sidecar(self) -> Sidecar | None:
        """Of the first file that has one; all that have one agree on the tokenizer."""
        return next((sidecar for sidecar in self.sidecars.values() if sidecar is not None), None)

    @property
    def tokenizer_folders(self) -> tuple[Path, ...]:
        """Where the names of their tokenizers begin, that of `sidecar` first."""
        return tuple(prefix.parent for prefix, sidecar in self.sidecars.items() if sidecar is not None)

    def num_documents(self) -> str:
        """How many each split has, for messages: train 3, valid 0."""
        counts = (
            f"{split} {sum(len(part.documents(self.indices[part.prefix].num_documents)) for part in parts)}"
            for split, parts in self.splits.items()
        )
        return ", ".join(counts)

    def check_samples(self, splits: list[str], sequence_length: int) -> None:
        """DataError where a part of these splits holds no sample."""
        for split in splits:
            try:
                open_split(self.splits[split], sequence_length)
            except DataError as error:
                raise DataError(f"{error}\n  documents: {self.num_documents()}") from error

    def overlaps(self) -> Iterator[str]:
        """What is held out and trained on too, in words."""
        for split in ("valid", "test"):
            for held_out in self.splits.get(split, ()):
                for part in self.splits["train"]:
                    if part.prefix != held_out.prefix:
                        continue
                    total = self.indices[part.prefix].num_documents
                    ours, theirs = held_out.documents(total), part.documents(total)
                    shared = range(max(ours.start, theirs.start), min(ours.stop, theirs.stop))
                    if shared:
                        yield f"{held_out.key}: {len(shared)} of its {len(ours)} documents are {part.key}'s too"

    def check_token_ids(self, vocab_size: int, *, say: Any = lambda message: None) -> None:
        """DataError for ids beyond the model's table: as the sidecar says, else by reading the tokens once."""
        for part in self.parts():
            index, sidecar = self.indices[part.prefix], self.sidecars[part.prefix]
            if sidecar is not None:
                smallest, largest = 0, sidecar.largest_token_id
            elif index.dtype.kind == "u" and np.iinfo(index.dtype).max < vocab_size:
                continue
            else:
                smallest, largest = find_id_range(part.prefix, index, say=say)
            if largest >= vocab_size:
                raise part.fault(
                    f"the largest token id in {part.prefix} is {largest}, beyond the model's table, "
                    f"model.config.vocab_size={vocab_size}\n  set model.config.vocab_size={largest + 1} or more"
                )
            if smallest < 0:
                raise part.fault(
                    f"{bin_path(part.prefix)}: holds negative numbers ({smallest}), which are no token ids"
                )

    def identity(self) -> str:
        """Changes when a sample might: with an index, the tokens, the tokenizer, a range, a weight.

        The tokens by their hash in the sidecar, and by probes, which show most files that were changed since; of files
        without that hash by probes alone.
        """
        digest = hashlib.sha256()
        for split, parts in self.splits.items():
            for part in parts:
                content = _digest(part.prefix, self.indices[part.prefix])
                sidecar = self.sidecars[part.prefix]
                tokenizer = sidecar.tokenizer_hash if sidecar is not None else None
                digest.update(repr((split, content, tokenizer, part.weight, part.start, part.end)).encode())
                if sidecar is not None and sidecar.tokens_sha256 is not None:
                    digest.update(sidecar.tokens_sha256.encode())
        return digest.hexdigest()


def find_id_range(prefix: Path, index: IndexArrays, *, say: Any = lambda message: None) -> tuple[int, int]:
    """Smallest and largest token id of a file, read through once and then kept beside it; (0, -1) of none."""

    def scan() -> np.ndarray:
        say(f"looking for the largest token id in {bin_path(prefix)}")
        smallest, largest = 0, -1
        with bin_path(prefix).open("rb") as file:
            while len(block := np.fromfile(file, dtype=index.dtype, count=_BLOCK)):
                smallest, largest = min(smallest, int(block.min())), max(largest, int(block.max()))
        return np.array([smallest, largest])

    cache = IndexCache(cache_path(prefix))
    smallest, largest = cache.array(["ids"], scan, stamp=file_stamp(prefix), shape=(2,), label="ids")
    return int(smallest), int(largest)


def _digest(prefix: Path, index: IndexArrays) -> str:
    """Of a file's type, sequences and documents, and of blocks here and there in its tokens."""
    digest = hashlib.sha256(f"{index.dtype.str} {index.num_tokens}".encode())
    for values in (index.sizes, index.doc_idx):
        for begin in range(0, len(values), _BLOCK):
            digest.update(values[begin : begin + _BLOCK].astype(np.int64).tobytes())
    size = bin_path(prefix).stat().st_size
    with bin_path(prefix).open("rb") as file:
        for probe in range(_PROBES):
            file.seek(size * probe // _PROBES)
            digest.update(file.read(_PROBE_BYTES))
    return digest.hexdigest()
