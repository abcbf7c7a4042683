"""`backend`: who computes the ids makes no difference to the files."""

import json

import numpy as np
import pytest
from preprocess_cases import Bench, write_jsonl
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from gooseslo.data.preprocess import chunks, work
from gooseslo.data.preprocess.encoding import Encoding
from gooseslo.data.preprocess.inputs import find_sources
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

    def encoder(texts, *, continued=False):
        longest.append(max(map(len, texts)))
        return encode(texts, continued=continued)

    encoded = work.encode_chunk(work.Chunk(kind="values", content=texts, first_line=1, num_lines=6), task, encoder)
    assert max(longest) == 200 and encoded.num_empty == 1
    ids = np.frombuffer(encoded.tokens, task.dtype).tolist()
    ends = np.cumsum(encoded.lengths).tolist()
    documents = [ids[begin : end - 1] for begin, end in zip([0, *ends], ends)]
    assert [ids[end - 1] for end in ends] == [0] * 5
    assert [tokenizer.decode(document) for document in documents] == [text for text in texts if text]
    assert documents[0] == FastEncoder(task.tokenizer, plain=True)(texts[:1])[0]


PREFIXED = {
    "byte-level": (None, pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "metaspace": (None, pre_tokenizers.Metaspace(prepend_scheme="first")),
    "prepend": (normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None),
    "sequence": (normalizers.Prepend(" "), pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=True)])),
}


@pytest.mark.parametrize("kind", PREFIXED)
@pytest.mark.parametrize("whole_files", [False, True])
def test_a_prefix_is_put_before_a_document_and_not_before_its_parts(tmp_path, monkeypatch, kind, whole_files):
    monkeypatch.setattr(work, "_PART_CHARACTERS", 1 << 20 if whole_files else 100)
    monkeypatch.setattr(chunks, "_PIECE_BYTES", 100)
    monkeypatch.setattr(chunks, "_LARGEST_PIECE_BYTES", 125)
    text = "the goose honks " * 50 + "end"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer, tokenizer.pre_tokenizer = PREFIXED[kind]
    tokenizer.train_from_iterator(text.split(), trainers.BpeTrainer(vocab_size=80, show_progress=False))
    task = work.Task(tokenizer=tokenizer.to_str(), plain=True, dtype="<u2", eod_token_id=None)
    (tmp_path / "text.txt").write_text(text)
    sources = find_sources("text.txt", base_dir=tmp_path)
    pieces = list(chunks.read_chunks(sources, chunks.ReadOptions(whole_files=whole_files), chunks.Position()))
    assert len(pieces) > 1 or not whole_files
    encoder = task.make_encoder()
    tokens = b"".join(work.encode_chunk(piece.chunk, task, encoder).tokens for piece in pieces)
    assert np.frombuffer(tokens, "<u2").tolist() == tokenizer.encode(text, add_special_tokens=False).ids
