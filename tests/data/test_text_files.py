"""Text files: what is read from them, and what each kind of bad file answers."""

import itertools
import json

import pytest

from gooseslo.data.text import text_files
from gooseslo.data.text.text_files import TextCorpus
from gooseslo.errors import DataError


def documents(corpus, split="train"):
    texts, held = [], ""
    for piece in corpus.pieces(split):
        held += piece.text
        if piece.ends_document:
            texts.append(held)
            held = ""
    assert held == ""
    return texts


def write_jsonl(path, texts, key="text"):
    path.write_text("".join(json.dumps({key: text}) + "\n" for text in texts))


def test_txt_is_one_document_with_its_line_ends_kept(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwö\n\nthree".encode())
    assert documents(TextCorpus(train="a.txt", base_dir=tmp_path)) == ["one\r\ntwö\n\nthree"]


def test_jsonl_is_a_document_a_line_and_empty_ones_are_skipped(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", ["goose", "", "honk\nhonk"], key="body")
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("\n  \n")
    assert documents(TextCorpus(train="a.jsonl", text_key="body", base_dir=tmp_path)) == ["goose", "honk\nhonk"]


def test_lists_and_parts(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [f"d{i}" for i in range(10)])
    (tmp_path / "b.txt").write_text("0123\n56789")
    sources = [{"path": "a.jsonl", "start": 0.5, "end": 0.7}, "b.txt", {"path": str(tmp_path / "b.txt"), "end": 0.5}]
    corpus = TextCorpus(train=sources, valid={"path": "a.jsonl", "start": 0.9}, base_dir=tmp_path)
    assert corpus.splits == ("train", "valid")
    assert documents(corpus) == ["d5", "d6", "0123\n56789", "0123\n"]
    assert documents(corpus, "valid") == ["d9"]


def test_parts_of_a_file_cover_it_once(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"line {i} ö\n" for i in range(57)))
    edges = [0.0, 0.13, 0.5, 0.77, 1.0]
    sources = [{"path": "a.txt", "start": a, "end": b} for a, b in itertools.pairwise(edges)]
    assert "".join(documents(TextCorpus(train=sources, base_dir=tmp_path))) == (tmp_path / "a.txt").read_text()


def test_a_large_document_comes_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_PIECE_CHARACTERS", 20)
    (tmp_path / "a.txt").write_text("".join(f"line {i}\n" for i in range(30)))
    pieces = list(TextCorpus(train="a.txt", base_dir=tmp_path).pieces("train"))
    assert len(pieces) > 5 and max(len(piece.text) for piece in pieces) < 40
    assert [piece.ends_document for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert "".join(piece.text for piece in pieces) == (tmp_path / "a.txt").read_text()


def test_relative_paths_belong_to_the_caller(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a.txt").write_text("goose")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert documents(TextCorpus(train="./a.txt", base_dir=tmp_path / "here")) == ["goose"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"text": "ok"}\n{"text": "brok\n', ["line 2", "not JSON"]),
        (b'{"text": "ok"}\n\n{"txt": "no"}\n', ["line 3", "no key 'text'", "txt", "data.text_key"]),
        (b'{"text": 3}\n', ["line 1", "a number"]),
        (b'{"text": null}\n', ["line 1", "null"]),
        (b'["text"]\n', ["line 1", "a list"]),
        (b'{"text": "\\ud83d"}\n', ["line 1", "surrogate"]),
        (b'{"text": ' + b"1" * 5000 + b"}\n", ["line 1", "not JSON"]),
        (b"[" * 100_000 + b"\n", ["line 1", "not JSON"]),
        (b'{"text": "ok"}\n{"text": "\xff"}\n', ["line 2", "not UTF-8", "0xff"]),
    ],
)
def test_bad_records_name_file_and_line(tmp_path, content, words):
    (tmp_path / "a.jsonl").write_bytes(content)
    corpus = TextCorpus(train="a.jsonl", base_dir=tmp_path)
    with pytest.raises(DataError) as caught:
        documents(corpus)
    assert all(word in str(caught.value) for word in ["data.train", "a.jsonl", *words])
    assert len(str(caught.value).splitlines()) <= 5


def test_text_that_is_not_utf8_names_the_line(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"fine\nfine\nna\xefve\n")
    with pytest.raises(DataError, match=r"a\.txt, line 3: not UTF-8 \(byte 0xef at column 3\)"):
        documents(TextCorpus(train="a.txt", base_dir=tmp_path))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("absent.txt", "no such file"),
        ("folder", "a folder"),
        ("empty.txt", "empty"),
        ("table.csv", "'.csv' is not known"),
        ([], "empty list"),
        (3, "neither a path"),
        ({"path": "good.txt", "weight": 2}, "neither a path"),
        ({"path": "good.txt", "start": 0.5, "end": 0.5}, "start < end"),
        ({"path": "good.txt", "end": 1.5}, "start < end"),
        ({"path": "good.txt", "start": "half"}, "not a number"),
        ([["good.txt"]], "neither a path"),
    ],
)
def test_bad_sources_are_refused_before_reading(tmp_path, value, words):
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.txt").touch()
    (tmp_path / "table.csv").write_text("a,b")
    (tmp_path / "good.txt").write_text("good")
    with pytest.raises(DataError, match=words) as caught:
        TextCorpus(train="good.txt", valid=value, base_dir=tmp_path)
    assert "data.valid" in str(caught.value)


def test_no_train_file(tmp_path):
    with pytest.raises(DataError, match=r"data\.train: no file given"):
        TextCorpus(train=None, base_dir=tmp_path)
