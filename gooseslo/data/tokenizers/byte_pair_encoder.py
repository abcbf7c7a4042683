"""Encoding by tiktoken, and by the tokenizer itself where the two might differ."""

from __future__ import annotations

import re
import unicodedata

import numpy as np
import tiktoken

from gooseslo.data.tokenizers.byte_pairs import BytePairs
from gooseslo.data.tokenizers.characters import may_be_new
from gooseslo.data.tokenizers.fast_encoder import FastEncoder


class BytePairEncoder:
    """Ids of documents, those that `FastEncoder` gives."""

    def __init__(self, pairs: BytePairs, tokenizer_json: str, *, plain: bool):
        """`tokenizer_json` and `plain` as of FastEncoder."""
        ranks = {token: rank for rank, token in enumerate(pairs.tokens)}
        self._encoding = tiktoken.Encoding("", pat_str=pairs.pattern, mergeable_ranks=ranks, special_tokens={})
        self._ids = np.array(pairs.ids, dtype=np.uint32)
        self._composes = pairs.composes
        self._own = (tokenizer_json, plain)
        self._tokenizer: FastEncoder | None = None
        self._avoided = re.compile("|".join(map(re.escape, pairs.avoided))) if pairs.avoided else None

    def __call__(self, texts: list[str], *, continued: bool = False) -> list[np.ndarray]:
        """Ids of each text: 32 bits, unsigned. `continued` makes no difference: nothing is put before a text."""
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> np.ndarray:
        # An added token may be looked for in the text as it is, or as it is composed.
        composed = unicodedata.normalize("NFC", text) if self._composes and not text.isascii() else text
        if not (may_be_new(text) or self._spells_avoided(text) or self._spells_avoided(composed)):
            try:
                ranks = self._encoding.encode_to_numpy(composed, disallowed_special=())
            except ValueError:  # a run of millions of spaces is too much for its patterns
                pass
            else:
                return self._ids[ranks]
        if self._tokenizer is None:
            self._tokenizer = FastEncoder(self._own[0], plain=self._own[1])
        return np.array(self._tokenizer([text])[0], dtype=np.uint32)

    def _spells_avoided(self, text: str) -> bool:
        return self._avoided is not None and self._avoided.search(text) is not None
