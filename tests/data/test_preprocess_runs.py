"""Preprocessing as a whole: every token of every document, once, in order, whatever the workers do."""

import errno
import gzip
import hashlib
import json
import os
import resource
import shutil
import struct

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest
import zstandard
from preprocess_cases import WORDS, Bench, killed_at_a_name, texts, word_tokenizer, write_jsonl
from test_indexed_files import independent_read, independent_write
from transformers import BertTokenizerLegacy

from gooseslo.data.indexed.sidecar import Sidecar
from gooseslo.data.preprocess import folder, run, tokenise, writer
from gooseslo.data.preprocess.chunks import Placed, Position
from gooseslo.data.preprocess.encoding import Encoding
from gooseslo.data.preprocess.folder import WorkFolder
from gooseslo.data.preprocess.pool import Pool
from gooseslo.data.preprocess.work import Chunk
from gooseslo.data.tokenizers.tokenizer import fingerprint
from gooseslo.errors import DataError, DataWriteError


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """No journal is written unless a test asks for it, however slow the machine is."""
    monkeypatch.setattr(tokenise, "_JOURNAL_SECONDS", 1000.0)
    return Bench(tmp_path)


def expected(documents, eod=True):
    ids = [[WORDS.index(word) for word in document.split()] for document in documents]
    return [document + [0] * eod for document in ids if document]


def test_an_empty_first_document_is_left_out_and_counted(bench):
    write_jsonl(bench.folder / "docs.jsonl", ["", "goose honk pond", "egg"])
    prefix = bench.run("docs.jsonl")
    tokens, index = bench.files()
    assert struct.unpack("<6H", tokens) == (3, 4, 5, 0, 6, 0)
    assert independent_read(prefix) == ([[3, 4, 5, 0], [6, 0]], [0, 1, 2])
    assert struct.unpack_from("<2i2q", index, 34) == (4, 2, 0, 8) and len(index) == 82
    assert "2 documents, 6 tokens, 1 empty, 0 rejected" in bench.said
    assert Sidecar.read(prefix).empty_documents == 1


@pytest.mark.parametrize(("eod", "lengths", "num_bytes"), [(True, [4, 3], 14), (False, [3, 2], 10)])
def test_lengths_count_the_end_of_document(bench, eod, lengths, num_bytes):
    write_jsonl(bench.folder / "docs.jsonl", ["goose honk pond", "egg reed"])
    documents, _ = independent_read(bench.run("docs.jsonl", append_eod=eod))
    assert [len(document) for document in documents] == lengths
    assert len(bench.files()[0]) == num_bytes
    assert documents[1] == [6, 7, 0][: lengths[1]]


def test_a_large_vocabulary_has_32_bits(bench):
    words = ["<eod>", "<unk>", "<pad>", *(f"w{number}" for number in range(3, 70_001))]
    word_tokenizer(words).save_pretrained(bench.folder / "large")
    (bench.folder / "a.txt").write_text("w70000\n")
    prefix = bench.run("a.txt", tokenizer="large")
    assert bench.files()[1][17] == 4
    assert independent_read(prefix)[0] == [[70_000, 0]]
    bench.run("a.txt", output="out2")
    assert bench.files("out2")[1][17] == 8


@pytest.mark.parametrize(("added", "code"), [(0, 8), (1, 4)])
def test_added_tokens_count_towards_the_width(bench, added, code):
    words = ["<eod>", "<unk>", "<pad>", *(f"w{number}" for number in range(3, 1 << 16))]
    tokenizer = word_tokenizer(words)
    tokenizer.add_tokens(["gander"] * added)
    tokenizer.save_pretrained(bench.folder / "large")
    (bench.folder / "a.txt").write_text("w3 w65535 gander\n")
    documents, _ = independent_read(bench.run("a.txt", tokenizer="large"))
    assert bench.files()[1][17] == code
    assert documents == [[3, 65_535, 65_536 if added else 1, 0]]


def test_a_unicode_line_separator_is_part_of_a_text(bench):
    write_jsonl(bench.folder / "docs.jsonl", ["goose\u2028honk", "egg"])
    assert "\u2028" in (bench.folder / "docs.jsonl").read_text(encoding="utf-8")
    (bench.folder / "docs.txt").write_text("goose\u2028honk\negg\n", encoding="utf-8")
    for name in ("docs.jsonl", "docs.txt"):
        documents, _ = independent_read(bench.run(name, output=f"out-{name}"))
        assert documents == [[3, 4, 0], [6, 0]]


@pytest.mark.parametrize(("way", "ids"), [("plain", [3, 1, 1, 1, 4, 0]), ("tokenizer", [3, 0, 4, 0])])
def test_a_document_that_spells_the_end_of_document(bench, way, ids):
    write_jsonl(bench.folder / "docs.jsonl", ["goose <eod> honk"])
    assert independent_read(bench.run("docs.jsonl", special_tokens=way))[0] == [ids]
    assert ("1 end-of-document ids stand within documents" in bench.said) == (way == "tokenizer")


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("chunk_size", [1, 1000])
def test_the_bytes_depend_on_neither_workers_nor_chunks(bench, workers, chunk_size):
    documents = texts(1500)
    write_jsonl(bench.folder / "docs.jsonl", documents)
    prefix = bench.run("docs.jsonl", workers=workers, chunk_size=chunk_size)
    wanted = expected(documents)
    assert independent_read(prefix) == (wanted, list(range(len(wanted) + 1)))
    independent_write(bench.folder / "other", wanted, list(range(len(wanted) + 1)), code=8)
    assert bench.files() == bench.files("other"), "the bytes that another writer gives"
    facts = Sidecar.read(prefix)
    assert (facts.documents, facts.empty_documents) == (len(wanted), 1500 - len(wanted))
    assert facts.tokens == sum(map(len, wanted)) and facts.largest_token_id == 9 and facts.vocab_size == 10
    assert facts.tokenizer_hash == fingerprint(word_tokenizer())
    assert [source.documents for source in facts.sources] == [len(wanted)]
    assert bench.left() == ["out.bin", "out.idx", "out.json"]


def write_data_set(folder, documents):
    """As `datasets.save_to_disk` does: stream files, and a file that names them."""
    folder.mkdir()
    parts = [documents[:50], documents[50:]]
    for number, part in enumerate(parts):
        table = pa.table({"text": part, "id": list(range(len(part)))})
        with pa.ipc.new_stream(str(folder / f"data-{number}.arrow"), table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    names = [{"filename": f"data-{number}.arrow"} for number in range(2)]
    (folder / "state.json").write_text(json.dumps({"_data_files": names}))
    (folder / "dataset_info.json").write_text("{}")


def write_kinds(folder):
    """Every kind of input with the same documents, and the options that it takes."""
    documents = [text.replace("\n", " ") or "nest" for text in texts(120)]
    write_jsonl(folder / "plain.jsonl", documents)
    raw = (folder / "plain.jsonl").read_bytes()
    (folder / "lines.txt").write_text("\n\n".join(documents), encoding="utf-8")
    (folder / "windows.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(documents).encode() + b"\r\n \r\n")
    (folder / "mark.jsonl").write_bytes(b"\xef\xbb\xbf" + raw.replace(b"\n", b"\r\n\r\n"))
    (folder / "records.json").write_bytes(raw.rstrip(b"\n"))
    (folder / "two.jsonl.gz").write_bytes(gzip.compress(raw[:1000]) + gzip.compress(raw[1000:]))
    (folder / "two.jsonl.zst").write_bytes(zstandard.compress(raw[:1000]) + zstandard.compress(raw[1000:]))
    (folder / "lines.txt.gz").write_bytes(gzip.compress((folder / "lines.txt").read_bytes()))
    nested = [{"body": document, "n": 1} for document in documents]
    table = pa.table({"data": nested, "text": documents})
    pa.parquet.write_table(table, folder / "rows.parquet", row_group_size=17)
    nested_lines = (json.dumps({"data": record}) + "\n" for record in nested)
    (folder / "nested.jsonl").write_text("".join(nested_lines))
    write_data_set(folder / "set", documents)
    (folder / "many" / "below").mkdir(parents=True)
    write_jsonl(folder / "many" / "b.jsonl", documents[40:80])
    (folder / "many" / "a.txt").write_text("\n".join(documents[:40]))
    (folder / "many" / "below" / "c.jsonl.gz").write_bytes(gzip.compress(b"".join(raw.splitlines(True)[80:])))
    (folder / "many" / "notes.md").write_text("not read")
    (folder / "one").mkdir()
    for number, document in enumerate(documents):
        (folder / "one" / f"{number:03}.txt").write_text(document)
    (folder / "data.text").write_text((folder / "lines.txt").read_text())
    return documents


KINDS = {
    "lines": ("lines.txt", {}),
    "windows": ("windows.txt", {}),
    "byte order mark": ("mark.jsonl", {}),
    "json": ("records.json", {}),
    "gz": ("two.jsonl.gz", {}),
    "zst": ("two.jsonl.zst", {"chunk_size": 7}),
    "txt.gz": ("lines.txt.gz", {}),
    "parquet": ("rows.parquet", {"chunk_size": 7}),
    "nested parquet": ("rows.parquet", {"text_key": "data.body"}),
    "nested": ("nested.jsonl", {"text_key": "data.body"}),
    "data set": ("set", {"chunk_size": 5}),
    "folder": ("many", {}),
    "glob": ("many/**/*[lzt]", {}),
    "list": (["many/a.txt", "many/b.jsonl", "many/below"], {}),
    "a document a file": ("one", {"document": "file"}),
    "format": ("data.text", {"format": "txt"}),
}


def test_every_kind_of_input_gives_the_same_bytes(bench):
    documents = write_kinds(bench.folder)
    assert independent_read(bench.run("plain.jsonl"))[0] == expected(documents)
    for number, (name, (given, options)) in enumerate(KINDS.items()):
        bench.run(given, output=f"out{number}", **options)
        assert bench.files(f"out{number}") == bench.files(), name


BAD_LINES = [b'{"text": "goose"', b"[1]", b'{"txt": 1}', b'{"text": 3}', b'{"text": "\xff"}', b'{"text": "\\ud83e"}']


def test_records_without_a_text_are_kept_apart(bench):
    good = [json.dumps({"text": text}).encode() for text in texts(300, longest=5)]
    lines = good[:100] + BAD_LINES[:3] + good[100:200] + BAD_LINES[3:] * 8 + good[200:]
    (bench.folder / "docs.jsonl").write_bytes(b"\n".join(lines))
    prefix = bench.run("docs.jsonl", on_error="skip", workers=2, chunk_size=9)
    assert independent_read(prefix)[0] == expected(texts(300, longest=5))
    kept = [json.loads(line) for line in (bench.folder / "out.rejected.jsonl").read_text().splitlines()]
    assert [record["line"] for record in kept] == [101, 102, 103, *range(204, 228)]
    assert {record["file"] for record in kept} == {"docs.jsonl"} and kept[0]["record"] == '{"text": "goose"'
    words = ["not JSON", "this is a list", "no key 'text'; keys: txt", "'text' is a number", "not UTF-8", "surrogate"]
    assert all(word in record["reason"] for word, record in zip(words, kept))
    assert "27 rejected" in bench.said and "docs.jsonl, line 101: not JSON" in bench.said
    assert bench.said.count("docs.jsonl, line") == 20 and "and 7 more, all in out.rejected.jsonl" in bench.said
    assert Sidecar.read(prefix).rejected_documents == 27


def test_a_document_with_a_bad_line_is_left_out_whole(bench, monkeypatch):
    from gooseslo.data.preprocess import chunks

    monkeypatch.setattr(chunks, "_PIECE_BYTES", 100)
    (bench.folder / "a.txt").write_text("goose\n" * 10)
    (bench.folder / "b.txt").write_bytes(b"honk\n" * 100 + b"\xe9gg\n" + b"honk\n" * 100 + b"\xe9gg\n" * 50)
    (bench.folder / "c.txt").write_text("nest\n")
    options = {"document": "file", "on_error": "skip"}
    assert independent_read(bench.run(["a.txt", "b.txt", "c.txt"], **options))[0] == [[3] * 10 + [0], [9, 0]]
    words = "not UTF-8 (byte 0xe9 at column 1); the whole file, a document, is left out"
    assert bench.said.count("b.txt, line") == 1 and f"b.txt, line 101: {words}" in bench.said
    assert Sidecar.read(bench.folder / "out").tokens_sha256 == hashlib.sha256(bench.files()[0]).hexdigest()
    (kept,) = [json.loads(line) for line in (bench.folder / "out.rejected.jsonl").read_text().splitlines()]
    assert (kept["file"], kept["line"], kept["reason"]) == ("b.txt", 101, words)
    assert "1 rejected" in bench.said and Sidecar.read(bench.folder / "out").rejected_documents == 1
    with pytest.raises(DataError, match=r"b.txt, line 101: not UTF-8 [^;]*\n"):
        bench.run(["a.txt", "b.txt"], output="failed", document="file")


@pytest.mark.parametrize("bad", BAD_LINES, ids=["broken", "list", "key", "number", "bytes", "surrogate"])
def test_a_bad_record_ends_the_run_with_its_place(bench, bad):
    lines = [json.dumps({"text": "goose"}).encode()] * 40
    lines[30], lines[35] = bad, b"also bad"
    (bench.folder / "docs.jsonl").write_bytes(b"\n".join(lines))
    with pytest.raises(DataError, match=r"^input: docs.jsonl, line 31: ") as caught:
        bench.run("docs.jsonl", output="out/new", workers=2, chunk_size=3)
    assert "on_error=skip" in str(caught.value) and caught.value.exit_code == 2
    assert bench.left() == []


@pytest.mark.parametrize("kept", ["out", "out/a/b"])
def test_folders_that_were_made_for_nothing_are_removed(bench, kept):
    (bench.folder / kept).mkdir(parents=True)
    (bench.folder / "docs.jsonl").write_text("bad\n")
    before = sorted(bench.folder.rglob("*"))
    with pytest.raises(DataError, match="line 1"):
        bench.run("docs.jsonl", output="out/a/b/c/d")
    assert sorted(bench.folder.rglob("*")) == before


def test_what_is_no_text_in_a_column(bench):
    pa.parquet.write_table(pa.table({"text": ["goose", None, "egg"], "n": [1, 2, 3]}), bench.folder / "a.parquet")
    with pytest.raises(DataError, match=r"a.parquet, row 2: 'text' is null, not a text"):
        bench.run("a.parquet")
    with pytest.raises(DataError, match=r"column 'n' is of type int64, not text"):
        bench.run("a.parquet", text_key="n")
    with pytest.raises(DataError, match=r"no column 'txt'; columns: text, n"):
        bench.run("a.parquet", text_key="txt")
    assert bench.left() == []


def test_no_document_at_all(bench):
    write_jsonl(bench.folder / "docs.jsonl", ["", ""])
    with pytest.raises(DataError, match="it holds no document: 2 empty"):
        bench.run("docs.jsonl")
    assert bench.left() == []


def test_what_compression_hides_until_it_is_read(bench):
    raw = os.urandom(3 << 20)
    for name, data in (("a.txt.gz", gzip.compress(raw)), ("a.txt.zst", zstandard.compress(raw))):
        (bench.folder / name).write_bytes(data[: len(data) // 2])
        with pytest.raises(DataError, match=rf"{name}: cannot be read: the compressed data is damaged or cut short"):
            bench.run(name, on_error="skip")
    assert bench.left() == []


def test_a_file_that_changes_while_it_is_read(bench, monkeypatch):
    write_jsonl(bench.folder / "docs.jsonl", texts(50))
    real = tokenise.Tokeniser.run

    def run(self, *args, **options):
        with (bench.folder / "docs.jsonl").open("a") as file:
            file.write('{"text": "nest"}\n')
        return real(self, *args, **options)

    monkeypatch.setattr(tokenise.Tokeniser, "run", run)
    with pytest.raises(DataError, match=r"docs.jsonl: the file changed while it was read"):
        bench.run("docs.jsonl")
    (bench.folder / "docs.jsonl").unlink()


@pytest.mark.parametrize("name", ["b.jsonl", "b.jsonl.gz", "b.txt", "b.parquet", "set"])
@pytest.mark.parametrize("moment", ["opened", "found"])
def test_a_file_that_vanishes(bench, monkeypatch, name, moment):
    """Between the look at the folder and its own reading; or while others are read before it."""
    write_jsonl(bench.folder / "a.jsonl", texts(50))
    (bench.folder / "b.txt").write_text("goose\n")
    (bench.folder / "b.jsonl.gz").write_bytes(
        gzip.compress(write_jsonl(bench.folder / "b.jsonl", ["egg"]).read_bytes())
    )
    pa.parquet.write_table(pa.table({"text": ["egg"]}), bench.folder / "b.parquet")
    write_data_set(bench.folder / "set", texts(60))
    owner, function = {"opened": (tokenise.Tokeniser, "run"), "found": (run, "_given_tokenizer")}[moment]
    real = getattr(owner, function)

    def vanish(*args, **options):
        path = bench.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        return real(*args, **options)

    monkeypatch.setattr(owner, function, vanish)
    with pytest.raises(DataError, match=rf"^input: {name}: ") as caught:
        bench.run(["a.jsonl", name], output="out/new")
    message = str(caught.value)
    assert caught.value.exit_code == 2 and len(message.splitlines()) == 1
    assert "No such file" in message and bench.left() == []


def test_an_output_that_exists_is_left_alone(bench):
    write_jsonl(bench.folder / "docs.jsonl", ["goose"])
    (bench.folder / "out.bin").write_bytes(b"mine")
    for resume in (False, True):
        with pytest.raises(DataError, match=r"output=out: exists \(out.bin\)"):
            bench.run("docs.jsonl", resume=resume)
    assert (bench.folder / "out.bin").read_bytes() == b"mine" and bench.left() == ["out.bin"]


def test_a_finished_run_says_so(bench):
    write_jsonl(bench.folder / "docs.jsonl", ["goose"])
    bench.run("docs.jsonl", resume=True)
    bench.run("docs.jsonl", resume=True)
    assert bench.said == "output=out: finished already\n"


def test_two_processes_on_one_output(bench):
    write_jsonl(bench.folder / "docs.jsonl", ["goose"])
    with WorkFolder(bench.folder / "out") as folder:
        with pytest.raises(DataError, match="another process is writing it"):
            bench.run("docs.jsonl")
        assert folder.path.exists()
    bench.run("docs.jsonl")
    assert bench.left() == ["out.bin", "out.idx", "out.json"]


def interrupted(bench, given, monkeypatch, *, after, **options):
    """A run whose journal is written after every chunk, and that ends after some of them."""
    monkeypatch.setattr(tokenise, "_JOURNAL_SECONDS", 0.0)
    monkeypatch.setattr(tokenise, "_JOURNAL_SHARE", 1e9)
    real, seen = tokenise.Rejections.check, []

    def check(self, name, rejected):
        seen.append(name)
        if len(seen) > after:
            raise KeyboardInterrupt
        real(self, name, rejected)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(tokenise.Rejections, "check", check)
        bench.run(given, **options)


@pytest.mark.parametrize("after", [1, 5, 13])
@pytest.mark.parametrize("given", ["docs.jsonl", "docs.jsonl.gz", "docs.jsonl.zst", "rows.parquet", "set", "files"])
def test_an_interrupted_run_goes_on_to_the_same_bytes(bench, monkeypatch, given, after):
    documents = texts(200)
    folder = bench.folder
    raw = write_jsonl(folder / "docs.jsonl", documents).read_bytes()
    (folder / "docs.jsonl").write_bytes(b"\xef\xbb\xbf" + raw)
    (folder / "docs.jsonl.gz").write_bytes(gzip.compress(raw))
    (folder / "docs.jsonl.zst").write_bytes(zstandard.compress(raw))
    pa.parquet.write_table(pa.table({"text": documents}), folder / "rows.parquet", row_group_size=33)
    write_data_set(folder / "set", documents)
    (folder / "files").mkdir()
    for number, document in enumerate(documents[:20]):
        (folder / "files" / f"{number:02}.txt").write_text(document + "\nnest")
    options = {"document": "file"} if given == "files" else {}
    bench.run(given, output="whole", **options)
    interrupted(bench, given, monkeypatch, after=after, chunk_size=10, **options)
    assert bench.left() == [".out.preprocess"] and "the same command with resume=true goes on" in bench.said
    with (folder / ".out.preprocess" / "tokens.bin").open("ab") as file:
        file.write(b"what was written after the journal")
    bench.run(given, resume=True, chunk_size=3, workers=2, **options)
    assert "going on with out" in bench.said
    assert bench.files() == bench.files("whole")
    whole, gone_on = (Sidecar.read(folder / name) for name in ("whole", "out"))
    assert whole == gone_on
    assert gone_on.tokens_sha256 == hashlib.sha256(bench.files()[0]).hexdigest()
    assert bench.left() == ["out.bin", "out.idx", "out.json"]


def test_an_interrupted_run_is_begun_anew_without_resume(bench, monkeypatch):
    write_jsonl(bench.folder / "docs.jsonl", texts(50))
    interrupted(bench, "docs.jsonl", monkeypatch, after=3, chunk_size=10)
    bench.run("docs.jsonl")
    assert "removing what an earlier, unfinished run left in .out.preprocess" in bench.said
    assert independent_read(bench.folder / "out")[0] == expected(texts(50))


def test_resume_wants_the_same_run(bench, monkeypatch):
    path = write_jsonl(bench.folder / "docs.jsonl", texts(50))
    write_jsonl(bench.folder / "more.jsonl", texts(50))
    word_tokenizer([*WORDS, "gander"]).save_pretrained(bench.folder / "other")
    interrupted(bench, "docs.jsonl", monkeypatch, after=3, chunk_size=10)
    others = [
        ({"tokenizer": "other"}, "tokenizer is"),
        ({"append_eod": False}, "append_eod is False, and was True"),
        ({"special_tokens": "tokenizer"}, "special_tokens is tokenizer, and was plain"),
        ({"given": ["docs.jsonl", "more.jsonl"]}, "more.jsonl is new or was changed"),
        ({"given": "more.jsonl"}, "more.jsonl is new or was changed"),
    ]
    for options, words in others:
        with pytest.raises(DataError, match=words) as caught:
            bench.run(**{"given": "docs.jsonl", "resume": True, **options})
        assert str(caught.value).startswith("resume=true: ")
    later = path.stat().st_mtime_ns + 1000
    os.utime(path, ns=(later, later))
    with pytest.raises(DataError, match=r"docs.jsonl is new or was changed"):
        bench.run("docs.jsonl", resume=True)
    assert bench.left() == [".out.preprocess"]


def test_a_run_that_met_a_bad_record_goes_on_without_it(bench, monkeypatch):
    good = texts(60)
    lines = [json.dumps({"text": text}) for text in good]
    (bench.folder / "docs.jsonl").write_text("\n".join([*lines[:45], "bad", *lines[45:]]))
    monkeypatch.setattr(tokenise, "_JOURNAL_SECONDS", 0.0)
    with pytest.raises(DataError, match="line 46"):
        bench.run("docs.jsonl", chunk_size=10)
    prefix = bench.run("docs.jsonl", resume=True, on_error="skip")
    assert "going on" in bench.said and independent_read(prefix)[0] == expected(good)


@pytest.mark.parametrize("renamed", range(6))
def test_a_run_killed_between_two_names_is_finished_by_resume(bench, monkeypatch, renamed):
    write_jsonl(bench.folder / "docs.jsonl", [*texts(50), "goose"])
    options = {"tokenizer": None, "train_tokenizer": 300}
    bench.run("docs.jsonl", output="whole", **options)
    with killed_at_a_name(monkeypatch, renamed):
        try:
            bench.run("docs.jsonl", **options)
        except KeyboardInterrupt:
            assert "out.idx" not in bench.left()
    bench.run("docs.jsonl", resume=True, **options)
    assert bench.files() == bench.files("whole")
    assert bench.left() == ["out.bin", "out.idx", "out.json", "out.tokenizer"]


def test_the_journal_says_finished_when_all_is_on_the_disk(bench, monkeypatch):
    """Power may go at any time: a resumed run gives names to what is there, and looks no more at what it holds."""
    write_jsonl(bench.folder / "docs.jsonl", texts(50))
    real, real_flush, flushed = WorkFolder.write_journal, os.fsync, set()
    seen = []

    def fsync(descriptor):
        flushed.add(os.fstat(descriptor).st_ino)
        real_flush(descriptor)

    def write_journal(self, journal):
        if journal.finished:
            needed = [self.tokens, self.lengths, self.index, self.sidecar, self.path]
            seen.extend(path.name for path in needed if path.stat().st_ino not in flushed)
            assert self.index.stat().st_size > 34 and Sidecar.read(self.path / "facts") is not None
            seen.append("finished")
        real(self, journal)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(WorkFolder, "write_journal", write_journal)
    bench.run("docs.jsonl")
    assert seen == ["finished"]


def test_a_finished_run_whose_files_were_harmed_is_not_published(bench, monkeypatch):
    write_jsonl(bench.folder / "docs.jsonl", texts(50))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(WorkFolder, "publish", lambda self, **options: (_ for _ in ()).throw(KeyboardInterrupt))
        bench.run("docs.jsonl")
    index = bench.folder / ".out.preprocess" / "index.idx"
    whole = index.read_bytes()
    index.write_bytes(whole[:-9])
    with pytest.raises(DataError, match=r"index.idx: cut short[^\n]*\n  leave resume out"):
        bench.run("docs.jsonl", resume=True)
    assert bench.left() == [".out.preprocess"]
    index.write_bytes(whole)
    bench.run("docs.jsonl", resume=True)
    assert bench.left() == ["out.bin", "out.idx", "out.json"]


def test_what_a_finished_run_left_behind_is_removed(bench):
    """Killed when the last file had its name, and the work folder was still there."""
    write_jsonl(bench.folder / "docs.jsonl", texts(50))
    bench.run("docs.jsonl")
    (bench.folder / ".out.preprocess").mkdir()
    (bench.folder / ".out.preprocess" / "journal.json").write_text("{}")
    bench.run("docs.jsonl", resume=True)
    assert bench.left() == ["out.bin", "out.idx", "out.json"]


@pytest.mark.parametrize("place", ["the tokenizer", "the names", "the index"])
def test_a_disk_that_is_full_at_any_time_is_said(bench, monkeypatch, place):
    """While the tokenizer is kept, when files get their names, when the index is written: no traceback, no output."""
    write_jsonl(bench.folder / "docs.jsonl", texts(50))

    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    places = {"the tokenizer": (run, "staged_folder"), "the names": (folder, "flush")}
    module, name = {**places, "the index": (writer, "write_index")}[place]
    options = {"tokenizer": None, "train_tokenizer": 300}
    with monkeypatch.context() as patch:
        patch.setattr(module, name, full)
        with pytest.raises(DataWriteError, match="No space left on device\n  make room") as caught:
            bench.run("docs.jsonl", **options)
    assert caught.value.exit_code == 1 and "out.idx" not in bench.left()
    bench.run("docs.jsonl", resume=True, **options)
    assert "out.idx" in bench.left() and ".out.preprocess" not in bench.left()


def test_the_trained_tokenizer_lies_beside_the_data(bench):
    from transformers import AutoTokenizer

    documents = texts(200)
    write_jsonl(bench.folder / "docs.jsonl", documents)
    prefix = bench.run("docs.jsonl", tokenizer=None, train_tokenizer=300)
    tokenizer = AutoTokenizer.from_pretrained(bench.folder / "out.tokenizer")
    decoded = [tokenizer.decode(ids) for ids in independent_read(prefix)[0]]
    assert decoded == [document + "<|endoftext|>" for document in documents if document]
    facts = Sidecar.read(prefix)
    assert facts.tokenizer == "out.tokenizer" and facts.tokenizer_hash == fingerprint(tokenizer)
    with pytest.raises(DataError, match="eod_token=<eod>: a trained tokenizer has"):
        bench.run("docs.jsonl", output="other", tokenizer=None, train_tokenizer=300, eod_token="<eod>")


def test_the_end_of_document_token_is_one_of_the_tokenizer(bench):
    (bench.folder / "a.txt").write_text("goose\n")
    word_tokenizer(eos=None).save_pretrained(bench.folder / "without")
    with pytest.raises(DataError, match=r"no end-of-text token[^\n]*\n.*eod_token=TOKEN"):
        bench.run("a.txt", tokenizer="without")
    with pytest.raises(DataError, match=r"eod_token=<end>: not a token of the tokenizer\n.*<unk>"):
        bench.run("a.txt", tokenizer="without", eod_token="<end>")
    assert bench.left() == []
    assert independent_read(bench.run("a.txt", tokenizer="without", eod_token="nest"))[0] == [[3, 9]]
    assert independent_read(bench.run("a.txt", output="out2", tokenizer="without", append_eod=False))[0] == [[3]]


def test_a_tokenizer_written_in_python_works_as_well(bench):
    words = ["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]", "goose", "honk"]
    (bench.folder / "bert").mkdir()
    (bench.folder / "bert" / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizerLegacy(str(bench.folder / "bert" / "vocab.txt"))
    assert not tokenizer.is_fast
    (bench.folder / "a.txt").write_text("goose honk\n\nhonk <end>\n")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<end>"]})
    for plain, last in ((True, [6, 0, 1]), (False, [6, 7, 1])):
        chosen = Encoding(tokenizer=tokenizer, name="bert", eod_token_id=1, plain=plain)
        chunk = Chunk(kind="txt", content=(bench.folder / "a.txt").read_bytes(), first_line=1, num_lines=3)
        placed = Placed(chunk, source=0, name="a.txt", end=Position(), consumed=0)
        with Pool(chosen.task("text"), num_workers=1) as pool:
            ((_, encoded),) = pool.encode(iter([placed]))
        assert np.frombuffer(encoded.tokens, "<u2").tolist() == [5, 6, 1, *last]
        assert list(encoded.lengths) == [3, len(last)]


def test_a_full_disk_is_said_and_can_be_gone_on_from(bench, monkeypatch):
    monkeypatch.setattr(tokenise, "_JOURNAL_SECONDS", 0.0)
    write_jsonl(bench.folder / "docs.jsonl", texts(4000))
    bench.run("docs.jsonl", output="whole")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, before[1]))
    try:
        with pytest.raises(DataWriteError) as caught:
            bench.run("docs.jsonl", chunk_size=100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.exit_code == 1
    assert str(caught.value).startswith(
        f"output={bench.folder / 'out'}: cannot be written: File too large\n  make room"
    )
    assert bench.left() == [".out.preprocess"] and len(bench.files("whole")[0]) > 200_000
    bench.run("docs.jsonl", resume=True)
    assert "going on with out" in bench.said and bench.files() == bench.files("whole")
