"""tiktoken gives the ids of a byte-level tokenizer, whatever the text; where it might not, it is not asked."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from gooseslo.data.tokenizers.byte_pair_encoder import BytePairEncoder
from gooseslo.data.tokenizers.byte_pairs import NotBytePairsError, byte_pairs
from gooseslo.data.tokenizers.characters import may_be_new
from gooseslo.data.tokenizers.fast_encoder import FastEncoder
from gooseslo.data.tokenizers.tokenizer import train_tokenizer

CASES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = {"cl100k": CASES + r"\p{N}{1,3}" + SIGNS, "qwen2": CASES + r"\p{N}" + SIGNS}
"""As the tokenizers of Llama 3 and Qwen 2 have them."""
KINDS = ["gpt2", *WORDS]
TEXT = (
    "The goose's gander doesn't honk at 1234 geese;  'tis 20% of\n\n  the pond's\tworth. Die Gänse à côté, гуси 鵝 😀! "
)


def text_to_train_on() -> list[str]:
    return [TEXT.replace("goose", word) for word in ("goose", "duck", "swan", "heron")] * 4


@cache
def tokenizer_json(kind: str) -> str:
    if kind == "gpt2":
        return train_tokenizer(iter(text_to_train_on()), vocab_size=700).backend_tokenizer.to_str()
    bpe = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(WORDS[kind]), "isolated")
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    bpe.normalizer = normalizers.NFC() if kind == "qwen2" else None
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(text_to_train_on(), trainer)
    return bpe.to_str()


@cache
def encoders(kind: str) -> tuple[BytePairEncoder, FastEncoder]:
    content = tokenizer_json(kind)
    return BytePairEncoder(byte_pairs(content, plain=True), content, plain=True), FastEncoder(content, plain=True)


def assert_equal(encoder: BytePairEncoder, exact: FastEncoder, texts: list[str]) -> None:
    for text, ids, right in zip(texts, encoder(texts), exact(texts), strict=True):
        assert ids.tolist() == right, repr(text)


def around(character: str) -> str:
    """The character where its kind decides how the text is parted."""
    c = character
    return f"a{c}b 1{c}2 {c} .{c}'{c}s \t{c}\n{c}{c}"


def characters(step: int) -> list[str]:
    """Every one that text may hold; of the large blocks without cases each `step`-th."""
    dense = [*range(0x3400), *range(0xA000, 0xAC00), *range(0xE000, 0x20000), *range(0xE0000, 0xE0200)]
    sparse = [*range(0x3400, 0xA000), *range(0xAC00, 0xD800), *range(0x20000, 0x40000), *range(0xF0000, 0x110000)]
    return [chr(code) for code in [*dense, *sparse[::step]]]


@pytest.mark.parametrize("kind", KINDS)
def test_every_character_is_taken_as_the_tokenizer_takes_it(kind: str) -> None:
    texts = list(map(around, characters(97)))
    assert_equal(*encoders(kind), ["".join(texts[at : at + 50]) for at in range(0, len(texts), 50)])
    known = [text for text, character in zip(texts, characters(97)) if not may_be_new(character)]
    encoder, exact = encoders(kind)
    encoder._tokenizer = None
    assert_equal(encoder, exact, ["".join(known[at : at + 50]) for at in range(0, len(known), 50)])
    assert encoder._tokenizer is None, "tiktoken alone was asked"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_single_character(kind: str) -> None:
    texts = list(map(around, characters(1)))
    assert_equal(*encoders(kind), texts)


def test_what_unicode_14_knows_is_known_and_what_came_later_is_not() -> None:
    known = "é ß Ж 鵝 한 ا ๛ 😀 𠀀 𝕏 ﷽ \u00a0\u2003\u3000\x00"
    assert not any(may_be_new(character) for character in known)
    for new in ("\u1c89", "\ua7cb", "\U00010d40", "\U00031350", "\U00013460", "\u0378", "\ud800"):
        assert may_be_new(new), hex(ord(new))
    assert all(may_be_new(chr(c)) for c in range(0x10000) if unicodedata.category(chr(c)) == "Cn")
    content = tokenizer_json("gpt2")
    encoder = BytePairEncoder(byte_pairs(content, plain=True), content, plain=True)
    encoder([known])
    assert encoder._tokenizer is None
    encoder(["a \u1c89"])
    assert encoder._tokenizer is not None, "the tokenizer itself is asked"


NASTY = st.text(
    st.sampled_from(
        "aab 's'T're'LL  \t\n\r\n\u00a0\u0301e\u0301é12345.,!?-_鵝😀\u200d\ufeff\u0085\u2028ſK<|endoftext|>"
    )
    | st.characters(exclude_categories=["Cs"]),
    max_size=60,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(text=NASTY)
def test_any_text(kind: str, text: str) -> None:
    assert_equal(*encoders(kind), [text, f"{TEXT}{text}", text * 30])


@pytest.mark.parametrize("kind", KINDS)
def test_long_runs(kind: str) -> None:
    """Of which a pattern with a look-ahead can be too much for tiktoken."""
    texts = [" " * 1_000_000 + "x", "a" * 100_000, "'" * 100_000, "\r\n" * 100_000, "goose" * 20_000, ""]
    assert_equal(*encoders(kind), texts)


def described(merges: list[tuple[str, str]], **model: object) -> str:
    """A tokenizer with these merges over the single bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    bpe = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, **model))  # type: ignore[arg-type]
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return bpe.to_str()


def test_a_token_that_its_own_bytes_never_become() -> None:
    """b+c goes first, so that ab+c is never joined; tiktoken, which looks at bytes alone, would join a and bc."""
    content = described([("b", "c"), ("a", "b"), ("ab", "c"), ("abc", "d")])
    pairs = byte_pairs(content, plain=True)
    assert b"bc" in pairs.tokens and b"abc" not in pairs.tokens
    exact = FastEncoder(content, plain=True)
    assert len(exact(["abc"])[0]) == 2
    assert_equal(BytePairEncoder(pairs, content, plain=True), exact, ["abc", "abcd abc bc ab xabcab", "ab"])


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_merges(data: st.DataObject) -> None:
    """Whatever merges are drawn: the ids are equal, or tiktoken is not asked."""
    made, merges = list("abc"), []
    for _ in range(data.draw(st.integers(1, 12))):
        left, right = data.draw(st.sampled_from(made)), data.draw(st.sampled_from(made))
        if left + right not in made:
            made.append(left + right)
            merges.append((left, right))
    content = described(merges)
    encoder = BytePairEncoder(byte_pairs(content, plain=True), content, plain=True)
    words = st.text("abc", min_size=1, max_size=200)
    assert_equal(encoder, FastEncoder(content, plain=True), data.draw(st.lists(words, min_size=1, max_size=8)))


def test_ids_need_not_be_in_the_order_of_the_merges() -> None:
    described_ = json.loads(tokenizer_json("gpt2"))
    vocabulary = described_["model"]["vocab"]
    words = list(vocabulary)
    shuffled = np.random.default_rng(0).permutation(len(words)).tolist()
    described_["model"]["vocab"] = dict(zip(words, shuffled))
    described_["added_tokens"][0]["id"] = described_["model"]["vocab"]["<|endoftext|>"]
    content = json.dumps(described_)
    assert_equal(
        BytePairEncoder(byte_pairs(content, plain=True), content, plain=True), FastEncoder(content, plain=True), [TEXT]
    )


def with_added(*tokens: AddedToken) -> str:
    tokenizer = Tokenizer.from_str(tokenizer_json("gpt2"))
    tokenizer.add_tokens(list(tokens))
    return tokenizer.to_str()


@pytest.mark.parametrize("plain", [True, False])
def test_tokens_outside_the_merges(plain: bool) -> None:
    content = with_added(AddedToken("honk!"), AddedToken("<|pond|>", special=True), AddedToken("duck", lstrip=True))
    encoder = BytePairEncoder(byte_pairs(content, plain=plain), content, plain=plain)
    texts = ["a honk! b", "<|pond|> <|endoftext|>", "the   duck", TEXT]
    assert_equal(encoder, FastEncoder(content, plain=plain), texts)


@pytest.mark.parametrize("content", ["\u00e9", "e\u0301"])
def test_a_token_that_is_looked_for_in_the_composed_text(content: str) -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json("qwen2"))
    tokenizer.add_tokens([AddedToken(content, normalized=True)])
    described = tokenizer.to_str()
    exact = FastEncoder(described, plain=True)
    texts = ["goose e\u0301 honk", "goose \u00e9 honk", "pondh\u00e9", "pondhe\u0301"]
    assert any(tokenizer.token_to_id(content) in ids for ids in exact(texts))
    assert_equal(BytePairEncoder(byte_pairs(described, plain=True), described, plain=True), exact, texts)


def changed(change: Callable[[Tokenizer], object]) -> str:
    tokenizer = Tokenizer.from_str(tokenizer_json("gpt2"))
    change(tokenizer)
    return tokenizer.to_str()


def own_words(tokenizer: Tokenizer) -> None:
    split = pre_tokenizers.Split(Regex(r"\s+|\S+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])


REFUSED: dict[str, tuple[Callable[[], str], str]] = {
    "another model": (lambda: Tokenizer(models.WordLevel({"a": 0}, "a")).to_str(), "no byte-pair encoding"),
    "letters made small": (
        lambda: changed(lambda each: setattr(each, "normalizer", normalizers.Lowercase())),
        "normalizer",
    ),
    "a space before": (
        lambda: changed(lambda each: setattr(each, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True))),
        "pre_tokenizer",
    ),
    "words of its own": (lambda: changed(own_words), "pre_tokenizer"),
    "no words": (lambda: Tokenizer(models.BPE()).to_str(), "pre_tokenizer"),
    "whole words first": (lambda: described([("a", "b")], ignore_merges=True), "ignore_merges"),
    "chance": (lambda: described([("a", "b")], dropout=0.1), "dropout"),
    "two ways to a token": (lambda: described([("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")]), "several"),
    "out of order": (lambda: out_of_order(), "order"),
    "a byte without a token": (lambda: without_a_byte(), "some byte"),
}


def out_of_order() -> str:
    content = json.loads(described([("a", "b"), ("ab", "c")]))
    content["model"]["merges"].reverse()
    return json.dumps(content)


def without_a_byte() -> str:
    content = json.loads(described([("a", "b")]))
    del content["model"]["vocab"]["z"]
    return json.dumps(content)


@pytest.mark.parametrize("case", REFUSED)
def test_where_tiktoken_might_differ_it_is_not_asked(case: str) -> None:
    make, reason = REFUSED[case]
    with pytest.raises(NotBytePairsError, match=reason):
        byte_pairs(make(), plain=True)
