"""`backend`: who computes the ids makes no difference to the files."""

import json

import pytest
from preprocess_cases import Bench, write_jsonl

from gooseslo.data.tokenizers.tokenizer import train_tokenizer
from gooseslo.errors import DataError

SENTENCES = [
    "The goose doesn't honk.",
    "Гуси и 鵝 😀 \u1c89",
    "",
    "12 345\n\n  geese <|endoftext|> <|endoftext|>",
    "\t ",
]
DOCUMENTS = [" ".join(SENTENCES[number % 5 :]) * (number % 7) for number in range(300)]


@pytest.fixture
def bench(tmp_path):
    write_jsonl(tmp_path / "docs.jsonl", DOCUMENTS)
    train_tokenizer(iter(DOCUMENTS), vocab_size=500).save_pretrained(tmp_path / "bpe")
    return Bench(tmp_path)


@pytest.mark.parametrize("special_tokens", ["plain", "tokenizer"])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_bytes(bench, special_tokens, workers):
    options = {"tokenizer": "bpe", "special_tokens": special_tokens, "workers": workers}
    bench.run("docs.jsonl", output="one", backend="tokenizers", **options)
    assert "tiktoken" not in bench.said
    bench.run("docs.jsonl", output="two", **options)
    assert "ids by tiktoken" in bench.said
    assert bench.files("one") == bench.files("two")
    sidecars = [json.loads((bench.folder / f"{name}.json").read_text()) for name in ("one", "two")]
    assert sidecars[0] == sidecars[1]


def test_pieces_of_a_document(bench, monkeypatch):
    monkeypatch.setattr("gooseslo.data.preprocess.chunks._PIECE_BYTES", 500)
    (bench.folder / "book.txt").write_text("\n".join(DOCUMENTS))
    for name, backend in (("one", "tokenizers"), ("two", "tiktoken")):
        bench.run("book.txt", output=name, tokenizer="bpe", document="file", backend=backend)
    assert bench.files("one") == bench.files("two")


def test_tiktoken_is_refused_where_its_ids_may_be_others(bench):
    with pytest.raises(DataError, match=r"backend=tiktoken: .*tokenizer=t0: it is no byte-pair encoding") as refused:
        bench.run("docs.jsonl", output="one", tokenizer="t0", backend="tiktoken")
    assert "leave backend out" in str(refused.value)
    assert not [path.name for path in bench.folder.iterdir() if "one" in path.name]
    bench.run("docs.jsonl", output="one", tokenizer="t0")
    assert "tiktoken" not in bench.said
