"""`gooseslo preprocess inspect=PREFIX`: counts of a prepared data set, and its first documents as text."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import numpy as np
from transformers import PreTrainedTokenizerBase

from gooseslo.data.indexed.names import prefix_of
from gooseslo.data.indexed.readers import IndexedReader
from gooseslo.data.indexed.sidecar import Sidecar
from gooseslo.data.preprocess import encoding
from gooseslo.data.preprocess.merge import open_prepared
from gooseslo.errors import DataError

_DOCUMENTS_SHOWN = 3
_TOKENS_SHOWN = 120


def inspect(name: str, *, tokenizer: str | None, base_dir: Path, out: TextIO) -> None:
    """Print what PREFIX holds; documents as ids where no tokenizer is known. DataError if it is not whole."""
    prefix = prefix_of(base_dir / name)
    reader, sidecar = open_prepared(prefix, key="inspect")
    decoder, unknown = _decoder(prefix, sidecar, tokenizer, base_dir)
    for label, value in _facts(reader, sidecar):
        out.write(f"{label:<12}{value}\n")
    if unknown:
        out.write(f"{unknown}\n")
    starts = reader.document_starts()
    for number in range(min(_DOCUMENTS_SHOWN, reader.num_documents)):
        start, length = int(starts[number]), int(starts[number + 1] - starts[number])
        ids = reader.tokens(start, min(length, _TOKENS_SHOWN)).tolist()
        more = f" ... and {length - len(ids):,} more" if length > len(ids) else ""
        text = decoder.decode(ids) if decoder is not None else ids
        shown = repr(text) if isinstance(text, str) else " ".join(map(str, ids))
        out.write(f"\ndocument {number}, {length:,} tokens{more}\n  {shown}\n")


def _facts(reader: IndexedReader, sidecar: Sidecar | None) -> list[tuple[str, str]]:
    bounds = reader.document_starts()
    lengths = np.diff(bounds)
    facts = [
        ("documents", f"{reader.num_documents:,}"),
        ("sequences", f"{len(reader):,}"),
        ("tokens", f"{reader.num_tokens:,} of {reader.dtype.name}"),
    ]
    if len(lengths):
        facts.append(("lengths", f"{lengths.min():,} to {lengths.max():,} tokens, {lengths.mean():,.1f} on average"))
    if sidecar is not None:
        eod = "none" if sidecar.eod_token_id is None else str(sidecar.eod_token_id)
        facts += [
            ("tokenizer", f"{sidecar.tokenizer}, {sidecar.vocab_size:,} entries"),
            ("end id", eod),
            ("largest id", f"{sidecar.largest_token_id:,}"),
            ("left out", f"{sidecar.empty_documents:,} empty, {sidecar.rejected_documents:,} rejected"),
            ("made from", _sources(sidecar)),
        ]
    return facts


def _sources(sidecar: Sidecar) -> str:
    names = [source.path for source in sidecar.sources]
    more = f" and {len(names) - _DOCUMENTS_SHOWN} more" if len(names) > _DOCUMENTS_SHOWN else ""
    return ", ".join(names[:_DOCUMENTS_SHOWN]) + more


def _decoder(
    prefix: Path, sidecar: Sidecar | None, given: str | None, base_dir: Path
) -> tuple[PreTrainedTokenizerBase | None, str]:
    """The tokenizer that was given, or that of the sidecar where it is still the same; else None and why."""
    if given is not None:
        tokenizer = encoding.load(given, base_dir=base_dir)
        if sidecar is not None and encoding.fingerprint(tokenizer) != sidecar.tokenizer_hash:
            return tokenizer, f"warning: tokenizer={given} is not the one that made the data ({sidecar.tokenizer})"
        return tokenizer, ""
    if sidecar is None:
        return None, "no tokenizer is known: no .json lies beside it; tokenizer=NAME shows text"
    for folder in (prefix.parent, base_dir):
        try:
            tokenizer = encoding.load(sidecar.tokenizer, base_dir=folder)
        except DataError:
            continue
        if encoding.fingerprint(tokenizer) == sidecar.tokenizer_hash:
            return tokenizer, ""
    return None, f"its tokenizer, {sidecar.tokenizer}, is not here as it was; tokenizer=NAME shows text"
