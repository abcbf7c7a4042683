"""`gooseslo preprocess merge=[A,B]`: prepared files joined to one, documents in their order."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import numpy as np

from gooseslo.data.indexed.layout import write_joined_index
from gooseslo.data.indexed.names import prefix_of, stored_name, tokenizer_path
from gooseslo.data.indexed.readers import IndexedReader, open_indexed
from gooseslo.data.indexed.sidecar import Sidecar
from gooseslo.data.preprocess.folder import WorkFolder, check_free, writing
from gooseslo.errors import DataError

_COPY_BYTES = 1 << 26
_WIDER = {("<i4", "<u2"): "<i4"}
"""Two types of token -> the one that holds both; others are joined only to their own kind."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One of the data sets to be joined."""

    name: str
    prefix: Path
    reader: IndexedReader
    sidecar: Sidecar | None
    """None beside files of other tools."""


def merge(names: Sequence[str], output: str, *, base_dir: Path, out: TextIO, err: TextIO) -> None:
    """Write `output` with the documents of every data set in turn. DataError if they do not belong together.

    16-bit and 32-bit ids become 32-bit ids; the tokenizers must be the same where that is known.
    """
    prefix = base_dir / output
    check_free(prefix, output=output)
    parts = [_open(str(name), base_dir) for name in names]
    dtype = _common_type(parts)
    if warning := _check_tokenizers(parts):
        err.write(f"warning: {warning}\n")
    with WorkFolder(prefix) as folder:
        try:
            check_free(prefix, output=output)  # another process may have been faster
            folder.clear()
            with writing(prefix, resumable=False):
                _write(folder, parts, dtype, base_dir=base_dir)
            folder.publish()
        except BaseException:
            folder.remove()
            raise
    merged = open_indexed(prefix)
    widened = "".join(f", {part.name} widened to 32-bit ids" for part in parts if part.reader.dtype.str != dtype)
    out.write(f"{output}: {merged.num_documents:,} documents, {merged.num_tokens:,} tokens{widened}\n")


def _open(name: str, base_dir: Path) -> Part:
    prefix = prefix_of(base_dir / name)
    reader, sidecar = open_prepared(prefix, key="merge")
    return Part(name=name, prefix=prefix, reader=reader, sidecar=sidecar)


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


def _write(folder: WorkFolder, parts: list[Part], dtype: str, *, base_dir: Path) -> None:
    digest = hashlib.sha256()
    with folder.tokens.open("wb") as file:
        for part in parts:
            count = _COPY_BYTES // part.reader.dtype.itemsize
            for start in range(0, part.reader.num_tokens, count):
                tokens = part.reader.tokens(start, min(count, part.reader.num_tokens - start))
                data = tokens.astype(dtype, copy=False).data
                file.write(data)
                digest.update(data)
    indices = [(part.reader.sizes, part.reader.doc_idx) for part in parts]
    write_joined_index(folder.index, dtype=np.dtype(dtype), parts=indices)
    if (facts := _joined_facts([part.sidecar for part in parts], dtype)) is not None:
        name = _keep_tokenizer(folder, parts, base_dir)
        facts = replace(facts, tokenizer=name or facts.tokenizer, tokens_sha256=digest.hexdigest())
        folder.sidecar.write_text(facts.to_json(), encoding="utf-8")


def _keep_tokenizer(folder: WorkFolder, parts: list[Part], base_dir: Path) -> str | None:
    """The name of the parts' tokenizer from the new place on; one that was trained is copied there. None: no folder."""
    for part in parts:
        assert part.sidecar is not None, "the facts of all are known"
        name = part.sidecar.tokenizer
        if name == tokenizer_path(part.prefix).name and (part.prefix.parent / name).is_dir():
            shutil.copytree(part.prefix.parent / name, folder.tokenizer)
            return tokenizer_path(folder.prefix).name
        for base in (part.prefix.parent, base_dir):  # older files name it from where they were made
            if name and (base / name).is_dir():
                return stored_name(name, base_dir=base, prefix=folder.prefix)
    return None


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
