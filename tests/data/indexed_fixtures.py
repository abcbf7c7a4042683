"""Prepared files for tests, written from the layout table and not by the package."""

import json
import struct
from itertools import pairwise

import numpy as np

CODES = {"uint8": 1, "int16": 3, "int32": 4, "uint16": 8}


def write_prefix(prefix, documents, dtype="uint16"):
    """PREFIX.bin and PREFIX.idx of documents, lists of token ids; the prefix again."""
    sizes = np.array([len(document) for document in documents], dtype="<i4")
    tokens = np.concatenate([np.asarray(document, dtype=dtype) for document in documents])
    prefix.with_name(prefix.name + ".bin").write_bytes(tokens.tobytes())
    pointers = (np.cumsum(sizes, dtype="<i8") - sizes) * tokens.itemsize
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, CODES[dtype], len(sizes), len(sizes) + 1)
    bounds = np.arange(len(sizes) + 1, dtype="<i8")
    prefix.with_name(prefix.name + ".idx").write_bytes(
        header + sizes.tobytes() + pointers.astype("<i8").tobytes() + bounds.tobytes()
    )
    return prefix


def write_sidecar(prefix, documents, /, **facts):
    """PREFIX.json as `gooseslo preprocess` leaves it, of a tokenizer that is nowhere."""
    tokens = sum(map(len, documents))
    content = {
        "tokenizer": "nowhere/at-all",
        "tokenizer_hash": "0" * 64,
        "vocab_size": 300,
        "eod_token_id": 0,
        "largest_token_id": int(max(map(max, documents))),
        "dtype": "uint16",
        "documents": len(documents),
        "tokens": tokens,
        "sources": [],
        "format": 1,
    }
    prefix.with_name(prefix.name + ".json").write_text(json.dumps(content | facts))


def numbered(sizes, first=0):
    """Documents of these sizes whose tokens count up from `first`: each token is known by its number."""
    bounds = np.cumsum([first, *sizes])
    return [np.arange(start, stop) for start, stop in pairwise(bounds)]
