"""Encoding by a tokenizer's own JSON, in processes that need nothing of the model library, which takes seconds."""

from __future__ import annotations

import functools
import json
from typing import Any

from tokenizers import Tokenizer

_NO_PREFIX: dict[str, dict[str, Any]] = {
    "Metaspace": {"prepend_scheme": "never"},
    "ByteLevel": {"add_prefix_space": False},
}


class FastEncoder:
    """Ids of documents by a tokenizer of the `tokenizers` library, without special tokens, truncation or padding."""

    def __init__(self, tokenizer_json: str, *, plain: bool):
        """`plain`: a document that spells a special token does not get its id."""
        self._json, self._plain = tokenizer_json, plain
        self._tokenizer = self._load(tokenizer_json)  # a copy: the caller's settings stay as they are

    def __call__(self, texts: list[str], *, continued: bool = False) -> list[list[int]]:
        """One list of ids a text. `continued`: the texts are later parts of one, before which nothing is put."""
        tokenizer = self._continuing if continued else self._tokenizer
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    @functools.cached_property
    def _continuing(self) -> Tokenizer:
        return self._load(without_prefix(self._json))

    def _load(self, tokenizer_json: str) -> Tokenizer:
        tokenizer = Tokenizer.from_str(tokenizer_json)
        tokenizer.encode_special_tokens = self._plain
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer


def without_prefix(tokenizer_json: str) -> str:
    """The tokenizer that puts nothing, such as a space, before a text."""
    described = json.loads(tokenizer_json)
    for part in ("normalizer", "pre_tokenizer"):
        described[part] = _without_prefix(described[part])
    return json.dumps(described, ensure_ascii=False)


def _without_prefix(step: dict[str, Any] | None) -> dict[str, Any] | None:
    if step is None or step["type"] == "Prepend":
        return None
    if step["type"] == "Sequence":
        name = "normalizers" if "normalizers" in step else "pretokenizers"
        return {**step, name: [kept for each in step[name] if (kept := _without_prefix(each)) is not None]}
    return {**step, **_NO_PREFIX.get(step["type"], {})}
