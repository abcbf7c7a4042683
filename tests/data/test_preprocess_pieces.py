"""Documents of any size: cut where it is seen in no output, refused where nothing could hold them."""

import gzip
import json

import pytest
import zstandard
from preprocess_cases import Bench
from test_indexed_files import independent_read
from test_preprocess_runs import expected

from gooseslo.data.preprocess import chunks, streams, tokenise, writer
from gooseslo.data.preprocess.chunks import Position
from gooseslo.data.preprocess.inputs import find_sources
from gooseslo.errors import DataError


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """No journal is written, however slow the machine is."""
    monkeypatch.setattr(tokenise, "_JOURNAL_SECONDS", 1000.0)
    return Bench(tmp_path)


def test_a_large_document_is_whole_and_its_cuts_are_its_own(bench, monkeypatch):
    document = "\ufeff" + "goose honk\npond " * 3000 + "nest"
    (bench.folder / "a.txt").write_text(document, encoding="utf-8")
    (bench.folder / "a.txt.zst").write_bytes(zstandard.compress(document.encode()))
    monkeypatch.setattr(chunks, "_PIECE_BYTES", 1000)
    documents, bounds = independent_read(bench.run(["a.txt", "a.txt.zst"], document="file", workers=2))
    assert documents == expected([document.lstrip("\ufeff")] * 2) and bounds == [0, 1, 2]
    for size in (100, 5000):
        monkeypatch.setattr(streams, "_BLOCK_BYTES", size)
        bench.run(["a.txt", "a.txt.zst"], output=f"out{size}", document="file")
        assert bench.files(f"out{size}") == bench.files()


@pytest.mark.parametrize(
    "unit", ["goose", "\N{GREEK SMALL LETTER GAMMA}\N{EGG}x", "goose "], ids=["bytes", "characters", "spaces"]
)
def test_a_document_without_lines_is_cut_at_a_limit(bench, monkeypatch, unit):
    """In the same places for every size of block and any workers; never in a character, at a space if there is one."""
    document = unit * 2000
    (bench.folder / "a.txt").write_text(document, encoding="utf-8")
    (bench.folder / "b.txt").write_text("nest")
    monkeypatch.setattr(chunks, "_PIECE_BYTES", 500)
    monkeypatch.setattr(chunks, "_LARGEST_PIECE_BYTES", 1005)
    found = []
    for size in (64, 999, 1 << 20):
        monkeypatch.setattr(streams, "_BLOCK_BYTES", size)
        sources = find_sources("a.txt", base_dir=bench.folder)
        placed = list(chunks.read_chunks(sources, chunks.ReadOptions(whole_files=True), Position()))
        found.append([each.chunk.content for each in placed])
        bench.run(["a.txt", "b.txt"], output=f"out{size}", document="file", workers=1 + size % 2)
        assert bench.files(f"out{size}") == bench.files("out64")
    assert found[0] == found[1] == found[2] and b"".join(found[0]).decode() == document
    assert max(map(len, found[0])) <= 1005 and min(map(len, found[0][:-1])) > 990
    assert all(piece.decode().strip() for piece in found[0])
    if unit == "goose ":
        assert all(piece.startswith(b" goose") for piece in found[0][1:])
        assert independent_read(bench.folder / "out64")[0][0] == [3] * 2000 + [0]


def test_reading_a_document_without_lines_takes_time_by_its_size(bench, monkeypatch):
    """Work that grows with the square of the size would look at each byte hundreds of times."""
    (bench.folder / "a.txt").write_bytes(b"x" * 400_000)
    monkeypatch.setattr(streams, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(chunks, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(chunks, "_LARGEST_PIECE_BYTES", 4000)
    held, real = [], chunks._piece_end

    def piece_end(bytes_held):
        held.append(len(bytes_held))
        return real(bytes_held)

    monkeypatch.setattr(chunks, "_piece_end", piece_end)
    sources = find_sources("a.txt", base_dir=bench.folder)
    assert len(list(chunks.read_chunks(sources, chunks.ReadOptions(whole_files=True), Position()))) == 100
    assert max(held) <= 5000 and len(held) < 600


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz"])
def test_a_line_that_no_memory_holds_is_named(bench, monkeypatch, name):
    monkeypatch.setattr(streams, "_BLOCK_BYTES", 100)
    monkeypatch.setattr(chunks, "_LONGEST_LINE_BYTES", 1000)
    line = b"goose " * 160 if "txt" in name else json.dumps({"text": "goose " * 160}).encode()
    good, bad = b"\n".join([line] * 9) + b"\n", b"goose " * 200 + b"\n"
    pack = gzip.compress if name.endswith("gz") else bytes
    (bench.folder / name).write_bytes(pack(good + bad + good))
    with pytest.raises(DataError, match=rf"^input: {name}, line 10: longer than 1,000 bytes") as caught:
        bench.run(name, on_error="skip")
    assert caught.value.exit_code == 2 and bench.left() == []
    (bench.folder / name).write_bytes(pack(good))
    assert len(independent_read(bench.run(name))[0]) == 9


def test_a_document_of_more_tokens_than_the_index_can_count(bench, monkeypatch):
    monkeypatch.setattr(writer, "_LARGEST_LENGTH", 4)
    (bench.folder / "a.txt").write_text("goose\n" * 5 + "goose honk pond egg\n")
    with pytest.raises(DataError, match=r"^input: a.txt, lines 1 to 6: a document of 5 tokens; [^\n]* up to 4\n"):
        bench.run("a.txt")
    with pytest.raises(DataError, match=r"^input: a.txt: a document of 10 tokens"):
        bench.run("a.txt", document="file")
    assert bench.left() == []


def test_a_document_that_is_blank_for_long_is_not_held(bench, monkeypatch):
    """Whether it is a document is known at its first word."""
    monkeypatch.setattr(streams, "_BLOCK_BYTES", 100)
    monkeypatch.setattr(chunks, "_LONGEST_LINE_BYTES", 1000)
    (bench.folder / "a.txt").write_text(" \n" * 300 + "goose" + " \n" * 2000)
    assert independent_read(bench.run("a.txt", document="file"))[0] == [[3, 0]]
    (bench.folder / "b.txt").write_text(" \n" * 600 + "goose")
    with pytest.raises(DataError, match=r"^input: b.txt: begins with more than 1,000 blank bytes$"):
        bench.run("b.txt", output="other", document="file", on_error="skip")
