"""`gooseslo preprocess merge=[A,B]`: prepared files joined to one, documents in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from gooseslo.data.indexed.layout import write_index
from gooseslo.data.indexed.readers import IndexedReader, open_indexed
from gooseslo.data.indexed.sidecar import Sidecar
from gooseslo.data.preprocess.folder import WorkFolder, existing_output, writing
from gooseslo.errors import DataError

_COPY_BYTES = 1 << 26
_WIDER = {("<i4", "<u2"): "<i4"}
"""Two types of token -> the one that holds both; others are joined only to their own kind."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One of the data sets to be joined."""

    name: str
    reader: IndexedReader
    sidecar: Sidecar | None
    """None beside files of other tools."""


def merge(names: Sequence[str], output: str, *, base_dir: Path, out: TextIO, err: TextIO) -> None:
    """Write `output` with the documents of every data set in turn. DataError if they do not belong together.

    16-bit and 32-bit ids become 32-bit ids; the tokenizers must be the same where that is known.
    """
    prefix = base_dir / output
    if found := existing_output(prefix):
        shown = ", ".join(path.name for path in found)
        raise DataError(f"output={output}: exists ({shown})\n  give another name, or remove it")
    parts = [_open(str(name), base_dir) for name in names]
    dtype = _common_type(parts)
    if warning := _check_tokenizers(parts):
        err.write(f"warning: {warning}\n")
    with WorkFolder(prefix) as folder:
        try:
            folder.clear()
            with writing(prefix, resumable=False):
                _write(folder, parts, dtype)
            folder.publish()
        except BaseException:
            folder.remove()
            raise
    merged = open_indexed(prefix)
    widened = "".join(f", {part.name} widened to 32-bit ids" for part in parts if part.reader.dtype.str != dtype)
    out.write(f"{output}: {merged.num_documents:,} documents, {merged.num_tokens:,} tokens{widened}\n")


def _open(name: str, base_dir: Path) -> Part:
    reader, sidecar = open_prepared(base_dir / name, key="merge")
    return Part(name=name, reader=reader, sidecar=sidecar)


def open_prepared(prefix: Path, *, key: str) -> tuple[IndexedReader, Sidecar | None]:
    """A data set and its facts, once they are known to fit each other; DataError with the key that named it."""
    try:
        reader = open_indexed(prefix)
        sidecar = Sidecar.read(prefix)
        if sidecar is not None:
            sidecar.check_counts(prefix, documents=reader.num_documents, tokens=reader.num_tokens)
    except DataError as error:
        raise DataError(f"{key}: {error}") from error
    return reader, sidecar


def _common_type(parts: list[Part]) -> str:
    types = {part.reader.dtype.str: part.name for part in parts}
    kinds = tuple(sorted(types))
    if len(kinds) == 1:
        return kinds[0]
    if kinds not in _WIDER:
        shown = ", ".join(f"{name} holds {np.dtype(kind).name}" for kind, name in types.items())
        raise DataError(f"merge: tokens of different types: {shown}\n  prepare them anew with one tokenizer")
    return _WIDER[kinds]


def _check_tokenizers(parts: list[Part]) -> str:
    """DataError if two tokenizers are known to differ; a warning where one is not known, else nothing."""
    known = [(part, part.sidecar) for part in parts if part.sidecar is not None]
    for part, sidecar in known:
        first, expected = known[0]
        if sidecar.tokenizer_hash != expected.tokenizer_hash:
            raise DataError(
                f"merge: {part.name} was made with another tokenizer ({sidecar.tokenizer}) than {first.name} "
                f"({expected.tokenizer})\n  ids of one are other words in the other: prepare them anew with one"
            )
        if sidecar.eod_token_id != expected.eod_token_id:
            raise DataError(f"merge: documents of {part.name} and {first.name} end with different tokens")
    unknown = [part.name for part in parts if part.sidecar is None]
    if not unknown or len(parts) == 1:
        return ""
    return f"{', '.join(unknown)}: no .json beside it, so nobody knows whether the tokenizer is the same"


def _write(folder: WorkFolder, parts: list[Part], dtype: str) -> None:
    with folder.tokens.open("wb") as file:
        for part in parts:
            count = _COPY_BYTES // part.reader.dtype.itemsize
            for start in range(0, part.reader.num_tokens, count):
                tokens = part.reader.tokens(start, min(count, part.reader.num_tokens - start))
                file.write(tokens.astype(dtype, copy=False).data)
    sizes, doc_idx = joined_index([(part.reader.sizes, part.reader.doc_idx) for part in parts])
    write_index(folder.index, dtype=np.dtype(dtype), sizes=sizes, doc_idx=doc_idx)
    sidecars = [part.sidecar for part in parts]
    if (facts := _joined_facts(sidecars, dtype)) is not None:
        folder.sidecar.write_text(facts.to_json(), encoding="utf-8")


def joined_index(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """(sizes, doc_idx) of data sets laid one after the other, from those of each."""
    sizes = np.concatenate([sizes for sizes, _ in parts])
    bounds = [np.zeros(1, dtype=np.int64)]
    for _, doc_idx in parts:
        bounds.append(np.asarray(doc_idx[1:], dtype=np.int64) + bounds[-1][-1])
    return sizes, np.concatenate(bounds)


def _joined_facts(sidecars: list[Sidecar | None], dtype: str) -> Sidecar | None:
    """None where the facts of one are not known."""
    known = [sidecar for sidecar in sidecars if sidecar is not None]
    if len(known) < len(sidecars):
        return None
    return Sidecar(
        tokenizer=known[0].tokenizer,
        tokenizer_hash=known[0].tokenizer_hash,
        vocab_size=known[0].vocab_size,
        eod_token_id=known[0].eod_token_id,
        largest_token_id=max(each.largest_token_id for each in known),
        dtype=dtype,
        documents=sum(each.documents for each in known),
        tokens=sum(each.tokens for each in known),
        empty_documents=sum(each.empty_documents for each in known),
        rejected_documents=sum(each.rejected_documents for each in known),
        sources=tuple(source for each in known for source in each.sources),
    )
