"""Records to examples on the disk, once, before any worker starts: `SPLIT-ids` and `SPLIT-labels`, indexed files."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from transformers import PreTrainedTokenizerBase

from gooseslo.data.cache_folder import find_or_make, folder_of
from gooseslo.data.indexed.index_cache import IndexCache
from gooseslo.data.indexed.layout import choose_dtype, write_index
from gooseslo.data.indexed.names import bin_path, idx_path
from gooseslo.data.indexed.readers import open_indexed
from gooseslo.data.supervised.classification import class_names
from gooseslo.data.supervised.dataset import ExampleDataset
from gooseslo.data.supervised.example import Encoder, Task
from gooseslo.data.supervised.record_files import RecordFiles
from gooseslo.data.text.text_files import identity_of
from gooseslo.data.tokenizers.tokenizer import choose_tokenizer, fingerprint, rendering, table_size
from gooseslo.errors import DataError

_FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class PreparedExamples:
    """Where the examples of a run lie; small, and picklable for spawned workers."""

    folder: Path
    splits: tuple[str, ...]
    label_names: tuple[str, ...]
    """The classes by number; empty where labels are tokens."""
    packing: bool
    vocab_size: int
    """Rows that the tokenizer needs in the embedding table."""
    eos_token_id: int
    pad_id: int
    content: str
    """A hash of the examples: what a resumed run must find again."""

    @property
    def tokenizer_folder(self) -> Path:
        """The tokenizer's files, to be copied beside every checkpoint."""
        return self.folder / "tokenizer"

    def dataset(self, split: str, sequence_length: int) -> ExampleDataset:
        """The samples of a split; DataError if it is absent."""
        if split not in self.splits:
            raise DataError(f"data.{split}: this run has no such split\n  it has: {', '.join(self.splits)}")
        return ExampleDataset(
            open_indexed(self.folder / f"{split}-ids"),
            open_indexed(self.folder / f"{split}-labels"),
            sequence_length=sequence_length,
            pad_id=self.pad_id,
            packing=self.packing,
            label_at_end=bool(self.label_names),
            cache=IndexCache(self.folder / "index"),
            facts=[split, self.content],
        )


def prepare_examples(
    files: RecordFiles,
    task: Task,
    *,
    packing: bool,
    tokenizer: str | None,
    vocab_size: int | None,
    model_vocab_size: int,
    cache_dir: Path,
    base_dir: Path,
    progress: Callable[[str], None] = lambda message: None,
) -> PreparedExamples:
    """Encode every record under `cache_dir`, or find that already done; keys as `gooseslo.data.prepare.prepare`.

    DataError for records or a tokenizer that cannot be used, with nothing left under a final name.
    """
    chosen = choose_tokenizer(tokenizer, vocab_size, model_vocab_size=model_vocab_size, base_dir=base_dir)

    def texts() -> Iterator[str]:
        return (text for record in files.map("train", task.texts) for text in record)

    def make(folder: Path) -> None:
        made = chosen.make(texts, task.name, progress)
        _encode(files, task, made, folder, progress)

    facts = [_FORMAT, tokenizers.__version__, task.identity(), identity_of(files.sources), chosen.key]
    if chosen.given is not None:
        facts.append(rendering(chosen.given))

    def read(folder: Path) -> PreparedExamples | None:
        return _read(folder, packing=packing)

    return find_or_make(folder_of(cache_dir, task.name, facts), read=read, make=make)


def _encode(
    files: RecordFiles, task: Task, tokenizer: PreTrainedTokenizerBase, folder: Path, progress: Callable[[str], None]
) -> None:
    names = class_names(set(files.map("train", task.label))) if task.has_classes else []
    encoder = task.encoder(tokenizer, names)
    size = table_size(tokenizer)
    content = hashlib.sha256(json.dumps([fingerprint(tokenizer), names]).encode())
    for split in files.sources:
        progress(f"encoding the {split} split of data={task.name}")
        _write_split(folder, split, files, encoder, dtype=choose_dtype(size), content=content)
    tokenizer.save_pretrained(folder / "tokenizer")
    meta = {
        "splits": list(files.sources),
        "label_names": names,
        "vocab_size": size,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_id": tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        "content": content.hexdigest(),
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def _write_split(
    folder: Path, split: str, files: RecordFiles, encoder: Encoder, *, dtype: np.dtype, content: Any
) -> None:
    ids, labels, sizes = folder / f"{split}-ids", folder / f"{split}-labels", array("i")
    with bin_path(ids).open("wb") as ids_file, bin_path(labels).open("wb") as labels_file:
        for example in files.map_batches(split, encoder.draft, encoder.encode):
            sizes.append(len(example.input_ids))
            for values, kind, file in ((example.input_ids, dtype, ids_file), (example.labels, "<i4", labels_file)):
                data = values.astype(kind).tobytes()
                content.update(data)
                file.write(data)
    if not sizes:
        parts = ", ".join(f"start={s.start:g}, end={s.end:g} of {s.path}" for s in files.sources[split])
        raise DataError(f"data.{split}: there is no record in it\n  it is {parts}")
    write_index(idx_path(ids), dtype=dtype, sizes=np.frombuffer(sizes, dtype=np.int32))
    write_index(idx_path(labels), dtype=np.dtype("<i4"), sizes=np.frombuffer(sizes, dtype=np.int32))


def _read(folder: Path, *, packing: bool) -> PreparedExamples | None:
    """What `folder` holds; None if it is absent or damaged."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        facts = {key: meta[key] for key in ("vocab_size", "eos_token_id", "pad_id", "content")}
        splits, names = tuple(meta["splits"]), tuple(meta["label_names"])
        for split in splits:
            for part in ("ids", "labels"):
                open_indexed(folder / f"{split}-{part}")
    except (OSError, ValueError, KeyError, DataError):
        return None
    if not (folder / "tokenizer").is_dir():
        return None
    return PreparedExamples(folder=folder, splits=splits, label_names=names, packing=packing, **facts)
