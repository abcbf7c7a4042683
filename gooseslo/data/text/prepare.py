"""Text to token files, once, before any worker starts; later runs with the same text and tokenizer find them cached.

It runs in the parent. Its tokenizer threads do not disturb workers forked afterwards: nothing here computes with torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers
from transformers import PreTrainedTokenizerBase

from gooseslo.data.cache_folder import find_or_make, folder_of
from gooseslo.data.text.corpus import Corpus, Piece
from gooseslo.data.text.packed import PackedDataset, TokenFile
from gooseslo.data.tokenizers.tokenizer import (
    DocumentEncoder,
    choose_tokenizer,
    fingerprint,
    table_size,
)
from gooseslo.errors import DataError

_FORMAT = 2
_BATCH_CHARACTERS = 1 << 20
_BATCH_PIECES = 1024


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """Where the tokens of a run lie; small, and picklable for spawned workers."""

    folder: Path
    splits: dict[str, TokenFile]
    tokenizer_folder: Path
    """The tokenizer's files, to be copied beside every checkpoint."""
    vocab_size: int
    """Rows that the tokenizer needs in the embedding table."""
    eos_token_id: int
    content: str
    """A hash of the tokens and the tokenizer: what a resumed run must find again."""
    reset_at_document: bool = False
    """Documents of one sample do not see each other."""

    def dataset(self, split: str, sequence_length: int) -> PackedDataset:
        """The packed samples of a split; DataError if it holds none, or is absent."""
        if split not in self.splits:
            raise DataError(f"data.{split}: this run has no such split\n  it has: {', '.join(self.splits)}")
        end = self.eos_token_id if self.reset_at_document else None
        return PackedDataset.open(self.splits[split], split=split, sequence_length=sequence_length, document_end=end)


def prepare(
    corpus: Corpus,
    *,
    tokenizer: str | None,
    vocab_size: int | None,
    model_vocab_size: int,
    cache_dir: Path,
    base_dir: Path,
    progress: Callable[[str], None] = lambda message: None,
) -> PreparedData:
    """Tokenise every split of `corpus` under `cache_dir`, or find that already done.

    `tokenizer` is a name or a folder relative to `base_dir`; None trains a byte-level BPE of `vocab_size` entries
    (None: the smaller of 8192 and the model's table) on the train split. Two processes may prepare the same at once.
    DataError for text or a tokenizer that cannot be used, with nothing left under a final name.
    """
    chosen = choose_tokenizer(tokenizer, vocab_size, model_vocab_size=model_vocab_size, base_dir=base_dir)

    def make(folder: Path) -> None:
        made = chosen.make(lambda: (piece.text for piece in corpus.pieces("train")), corpus.name, progress)
        _tokenise(corpus, made, folder, progress)

    facts = [_FORMAT, tokenizers.__version__, corpus.identity(), chosen.key]
    return find_or_make(folder_of(cache_dir, corpus.name, facts), read=_read_prepared, make=make)


def _tokenise(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, folder: Path, progress: Callable[[str], None]
) -> None:
    size = table_size(tokenizer)
    dtype = "uint16" if size <= 1 << 16 else "uint32"
    encoder = DocumentEncoder(tokenizer)
    num_tokens = {}
    content = hashlib.sha256(fingerprint(tokenizer).encode())
    for split in corpus.splits:
        progress(f"tokenising the {split} split of data={corpus.name}")
        count = 0
        with (folder / f"{split}.bin").open("wb") as file:
            for ids in _token_batches(corpus.pieces(split), encoder, eos_token_id=tokenizer.eos_token_id):
                data = np.asarray(ids, dtype=dtype).tobytes()
                content.update(data)
                file.write(data)
                count += len(ids)
        if count == 0:
            raise DataError(f"data.{split}: its files hold no text")
        num_tokens[split] = count
    tokenizer.save_pretrained(folder / "tokenizer")
    meta = {"dtype": dtype, "num_tokens": num_tokens, "vocab_size": size, "eos_token_id": tokenizer.eos_token_id}
    meta["content"] = content.hexdigest()
    (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def _token_batches(pieces: Iterator[Piece], encoder: DocumentEncoder, *, eos_token_id: int) -> Iterator[list[int]]:
    """Ids in order, the end-of-text id after each document that gave any."""
    open_document = False
    for batch in _batches(pieces):
        ids: list[int] = []
        for piece, piece_ids in zip(batch, encoder([piece.text for piece in batch])):
            ids += piece_ids
            open_document = open_document or bool(piece_ids)
            if piece.ends_document and open_document:
                ids.append(eos_token_id)
                open_document = False
        yield ids


def _batches(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    num_characters = 0
    for piece in pieces:
        batch.append(piece)
        num_characters += len(piece.text)
        if len(batch) >= _BATCH_PIECES or num_characters >= _BATCH_CHARACTERS:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch


def _read_prepared(folder: Path) -> PreparedData | None:
    """What `folder` holds; None if it is absent or damaged."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        splits = {
            split: TokenFile(path=folder / f"{split}.bin", dtype=meta["dtype"], num_tokens=count)
            for split, count in meta["num_tokens"].items()
        }
        intact = all(file.path.stat().st_size == file.num_bytes for file in splits.values())
        facts = {key: meta[key] for key in ("vocab_size", "eos_token_id", "content")}
    except (OSError, ValueError, KeyError):
        return None
    tokenizer_folder = folder / "tokenizer"
    if not intact or not tokenizer_folder.is_dir():
        return None
    return PreparedData(folder=folder, splits=splits, tokenizer_folder=tokenizer_folder, **facts)
