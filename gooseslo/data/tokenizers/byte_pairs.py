"""Byte-level byte-pair encodings that tiktoken computes too, three times as fast, with the very same ids.

The `tokenizers` library and tiktoken both merge the pair of the lowest rank, the leftmost first. The library knows a
rank by the two tokens merged, tiktoken by the bytes that they make together. The two agree on every text if, for each
token, the merges below its own lead its bytes, taken alone, to the two tokens that its merge joins: since merges never
cross a boundary that is still there, what happens between two boundaries is what happens to these bytes alone, so that
no other two tokens that make the same bytes ever meet at that rank. This holds for a token which encodes to itself and
which one merge alone makes; a token that does not encode to itself is never made, and tiktoken is not told of it.

What parts a text into words is one of the few patterns below; characters that are new in Unicode may be letters to one
library and none to the other, and are left to the tokenizer itself.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

_WORDS_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_WORDS_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WORDS_QWEN2 = _WORDS_CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
_SPLITS = (_WORDS_CL100K, _WORDS_QWEN2)
"""Patterns that tokenizers split by before their bytes are looked at; each takes every character of a text."""
_NUM_BYTES = 256


class NotBytePairsError(Exception):
    """tiktoken might give other ids; the message says why."""


@dataclass(frozen=True, kw_only=True)
class BytePairs:
    """What tiktoken needs to know of a tokenizer; pickled to the workers."""

    pattern: str
    """Of a word."""
    tokens: tuple[bytes, ...]
    """By rank: the single bytes, then what each merge makes."""
    ids: tuple[int, ...]
    """Of each of them, in the tokenizer."""
    composes: bool
    """A text is brought to Unicode's form NFC first."""
    avoided: tuple[str, ...]
    """A text that holds one of these strings is the tokenizer's own affair."""


def byte_pairs(tokenizer_json: str, *, plain: bool) -> BytePairs:
    """Of a tokenizer of the `tokenizers` library; NotBytePairsError if its ids are not known to be tiktoken's.

    `plain`: a document that spells a special token does not get its id. Takes 0.1 s for 16,000 entries.
    """
    described = json.loads(tokenizer_json)
    model = described["model"]
    _check_model(model)
    normalizer = described["normalizer"]
    if normalizer not in (None, {"type": "NFC"}):
        raise NotBytePairsError("it changes the text first (normalizer)")
    added = [token["content"] for token in described["added_tokens"] if not (plain and token["special"])]
    pattern = _pattern(described["pre_tokenizer"])
    ranked = list(_ranked(tokenizer_json, model))
    return BytePairs(
        pattern=pattern,
        tokens=tuple(token for token, _ in ranked),
        ids=tuple(token_id for _, token_id in ranked),
        composes=normalizer is not None,
        avoided=tuple(sorted({*added, *(unicodedata.normalize("NFC", content) for content in added)})),
    )


def _check_model(model: dict[str, Any]) -> None:
    if model["type"] != "BPE":
        raise NotBytePairsError(f"it is no byte-pair encoding but {model['type']}")
    for setting in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges"):
        if model.get(setting):
            raise NotBytePairsError(f"its byte-pair encoding is not the plain one ({setting}={model[setting]})")


def _pattern(pre_tokenizer: dict[str, Any] | None) -> str:
    """tiktoken's pattern for how a tokenizer parts a text into words."""
    steps = [pre_tokenizer or {"type": None}]
    if steps[0]["type"] == "Sequence":
        steps = steps[0]["pretokenizers"]
    *before, last = steps
    if last["type"] == "ByteLevel" and not last["add_prefix_space"]:
        if not before and last["use_regex"]:
            return _WORDS_GPT2
        if len(before) == 1 and not last["use_regex"] and _is_split(before[0]):
            return str(before[0]["pattern"]["Regex"])
    raise NotBytePairsError("it parts words in a way of its own (pre_tokenizer)")


def _is_split(step: dict[str, Any]) -> bool:
    """Whether it cuts out each match of a pattern that is known."""
    if step["type"] != "Split" or step["behavior"] != "Isolated" or step["invert"]:
        return False
    return step["pattern"].get("Regex") in _SPLITS


def _ranked(tokenizer_json: str, model: dict[str, Any]) -> Iterator[tuple[bytes, int]]:
    """(bytes, id) of each token that is ever made, by rank; proves what the head of this module asks for."""
    vocabulary: dict[str, int] = model["vocab"]
    letters = _letters()
    if any(letter not in vocabulary for letter in letters):
        raise NotBytePairsError("it has no token for some byte")
    for letter, byte in letters.items():
        yield bytes([byte]), vocabulary[letter]
    made = set(letters)
    bpe = Tokenizer.from_str(tokenizer_json).model
    for left, right in map(_two, model["merges"]):
        token = left + right
        if left not in made or right not in made:
            raise NotBytePairsError("its merges are not in the order in which they build on each other")
        if token in made:
            raise NotBytePairsError("several of its merges make the same token")
        made.add(token)
        token_id = vocabulary[token]
        if [each.id for each in bpe.tokenize(token)] == [token_id]:
            yield bytes(letters[letter] for letter in token), token_id


def _two(merge: str | list[str]) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _letters() -> dict[str, int]:
    """The letter that stands for each byte in a byte-level vocabulary (GPT-2's encoder.py): itself where it prints."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(_NUM_BYTES) if byte not in printed]
    letters = {chr(byte): byte for byte in printed} | {chr(_NUM_BYTES + at): byte for at, byte in enumerate(others)}
    return dict(sorted(letters.items(), key=lambda item: item[1]))
