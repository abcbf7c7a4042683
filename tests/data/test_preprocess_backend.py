"""`backend`: who computes the ids makes no difference to the files."""

import json

import numpy as np
import pytest
from preprocess_cases import Bench, write_jsonl
from transformers import AutoTokenizer

from gooseslo.data.preprocess import work
from gooseslo.data.preprocess.encoding import Encoding
from gooseslo.data.tokenizers.fast_encoder import FastEncoder
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


@pytest.mark.parametrize("backend", ["tokenizers", "tiktoken"])
def test_a_long_record_is_encoded_in_parts(bench, monkeypatch, backend):
    """Between words, where the ids are those of the whole; where no word ends, the text is whole all the same."""
    monkeypatch.setattr(work, "_PART_CHARACTERS", 200)
    tokenizer = AutoTokenizer.from_pretrained(bench.folder / "bpe")
    texts = ["The goose, in 1999,  doesn't honk. " * 100, "鵝" * 1000, "short", "", " " * 1000, DOCUMENTS[6] * 9]
    encoding = Encoding(tokenizer=tokenizer, name="bpe", eod_token_id=0, backend=backend)
    task = encoding.task("text")
    longest, encode = [], task.make_encoder()

    def encoder(texts):
        longest.append(max(map(len, texts)))
        return encode(texts)

    encoded = work.encode_chunk(work.Chunk(kind="values", content=texts, first_line=1, num_lines=6), task, encoder)
    assert max(longest) == 200 and encoded.num_empty == 1
    ids = np.frombuffer(encoded.tokens, task.dtype).tolist()
    ends = np.cumsum(encoded.lengths).tolist()
    documents = [ids[begin : end - 1] for begin, end in zip([0, *ends], ends)]
    assert [ids[end - 1] for end in ends] == [0] * 5
    assert [tokenizer.decode(document) for document in documents] == [text for text in texts if text]
    assert documents[0] == FastEncoder(task.tokenizer, plain=True)(texts[:1])[0]
