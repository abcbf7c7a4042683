"""What `input=` names, and that everything unusable is refused at once, by its name."""

import errno
import gzip
import io
import json
import os
import sys

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest
import zstandard
from preprocess_cases import Bench
from test_indexed_files import independent_read

from gooseslo.data.preprocess.columns import column_batches
from gooseslo.data.preprocess.inputs import find_sources
from gooseslo.errors import DataError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "below" / "deeper").mkdir(parents=True)
    for name in ("b.txt", "a.JSONL", "c.jsonl.gz", "below/z.txt", "below/deeper/y.json", "below/.hidden.txt", "n.md"):
        text = b'{"text": "goose"}\n'
        (tmp_path / name).write_bytes(gzip.compress(text, mtime=0) if name.endswith("gz") else text)
    return tmp_path


def names(value, folder, **options):
    return [source.name for source in find_sources(value, base_dir=folder, **options)]


def test_names_in_their_order(folder):
    assert names("b.txt", folder) == ["b.txt"]
    assert names(["n.md", "b.txt"], folder, file_format="txt") == ["n.md", "b.txt"]
    assert names(["b.txt", "below"], folder) == ["b.txt", "below/z.txt", "below/deeper/y.json"]
    assert names("*.[Jtj]*", folder) == ["a.JSONL", "b.txt", "c.jsonl.gz"]
    assert names("**/*.txt", folder) == ["b.txt", "below/z.txt"]
    assert names(str(folder / "below"), folder) == [str(folder / "below" / part) for part in ("z.txt", "deeper/y.json")]
    found = find_sources(".", base_dir=folder)
    assert [(source.name, source.format, source.compression) for source in found] == [
        ("a.JSONL", "jsonl", ""),
        ("b.txt", "txt", ""),
        ("c.jsonl.gz", "jsonl", "gz"),
        ("below/z.txt", "txt", ""),
        ("below/deeper/y.json", "jsonl", ""),
    ]
    assert found[1].num_bytes == 18


def test_a_name_with_magic_that_exists_is_a_name(folder):
    (folder / "a[1].txt").write_text("goose")
    assert names("a[1].txt", folder) == ["a[1].txt"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("absent.txt", "absent.txt: no such file"),
        ("empty.txt", "empty.txt: the file is empty"),
        ("empty.txt.gz", "empty.txt.gz: the file is empty"),
        ("not.txt.gz", "not.txt.gz: cannot be read: the compressed data is damaged"),
        ("not.txt.zst", "not.txt.zst: cannot be read: the compressed data is damaged"),
        ("n.md", "n.md: the ending is not known\n  known: .txt"),
        ("bare", "bare: the ending is not known"),
        ("nothing", "nothing: no file of a known ending in this folder, but 1 of .md\n  known: .txt"),
        ("*.csv", "*.csv: no file fits this pattern"),
        ("pipe.txt", "pipe.txt: not a file"),
        ([], "an empty list"),
        (["b.txt", "b.txt"], "b.txt: named twice"),
        (["b.txt", "*.txt"], "named twice"),
        ("dict", "dict: a data set of several splits\n  name one: dict/train, dict/valid"),
        ("set", "set: a damaged data-set folder"),
        ("", "'': not a name"),
        ("x" * 300, "x: cannot be read: File name too long"),
        ("circle/a.txt", "circle/a.txt: cannot be read: Too many levels of symbolic links"),
        ("gone.txt", "gone.txt: no such file"),
        (["absent.txt", "b.txt", "n.md"], "input: absent.txt: no such file\ninput: n.md: the ending"),
        ([f"{number}.txt" for number in range(9)], "input: 3.txt: no such file\ninput: and 5 more"),
    ],
    ids=str,
)
def test_what_cannot_be_used(folder, value, words):
    (folder / "empty.txt").touch()
    (folder / "empty.txt.gz").write_bytes(gzip.compress(b"", mtime=0))
    (folder / "not.txt.gz").write_text("goose")
    (folder / "not.txt.zst").write_text("goose")
    (folder / "bare").write_text("goose")
    (folder / "nothing").mkdir()
    (folder / "nothing" / "n.md").write_text("goose")
    os.mkfifo(folder / "pipe.txt")
    if value in ("circle/a.txt", "gone.txt"):
        (folder / "circle").symlink_to("circle")
        (folder / "gone.txt").symlink_to("absent.txt")
    for split in ("train", "valid"):
        (folder / "dict" / split).mkdir(parents=True)
        (folder / "dict" / split / "state.json").write_text("{}")
    (folder / "dict" / "dataset_dict.json").write_text("{}")
    (folder / "set").mkdir()
    (folder / "set" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "gone.arrow"}]}))
    if "*.txt" in value:
        (folder / "empty.txt").unlink()
        (folder / "pipe.txt").unlink()
    with pytest.raises(DataError) as caught:
        find_sources(value, base_dir=folder)
    assert words in str(caught.value) and str(caught.value).startswith("input: ")
    assert len(str(caught.value).splitlines()) <= 6


def test_links_to_folders_are_followed_and_circles_are_not(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "far.txt").write_text("goose")
    (folder / "below" / "link").symlink_to(elsewhere)
    (folder / "below" / "deeper" / "up").symlink_to("..")
    (elsewhere / "self").symlink_to(elsewhere)
    assert names("below", folder) == ["below/z.txt", "below/deeper/y.json", "below/link/far.txt"]
    (elsewhere / "again.txt").symlink_to(elsewhere / "far.txt")
    with pytest.raises(DataError, match=r"far.txt: named twice"):
        names("below", folder)


def test_a_folder_that_cannot_be_read_is_no_empty_folder(folder, monkeypatch):
    """What lies in it would be left out in silence."""
    real = os.scandir

    def scandir(path):
        if str(path).endswith("deeper"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(DataError, match=r"^input: .*below/deeper: cannot be read: Permission denied$"):
        names("below", folder)


ODD = {
    "a b é\n.txt": b"goose\nhonk\n",
    "windows.txt": b"goose\r\nhonk\r\n",
    "mark.txt": b"\xef\xbb\xbfgoose\nhonk",
    "members.txt.gz": gzip.compress(b"goose\nho") + gzip.compress(b"") + gzip.compress(b"nk\n") + bytes(100),
    "frames.txt.zst": zstandard.compress(b"goose\nho") + b"\x50\x2a\x4d\x18\x04\0\0\0skip" + zstandard.compress(b"nk"),
    os.fsdecode(b"not utf8 \xff.txt"): b"goose\nhonk\n",
}


@pytest.mark.parametrize("name", [*ODD, "link.txt", "x.jsonl", "large", "dictionary", "view"], ids=ascii)
def test_odd_inputs_that_are_whole(tmp_path, name):
    """Odd names, members and frames, links, a folder with the name of a file, Arrow's other types of text."""
    bench = Bench(tmp_path)
    given, words = name, pa.array(["goose", "honk"])
    if name in ODD:
        (tmp_path / name).write_bytes(ODD[name])
    elif name == "link.txt":
        (tmp_path / "a.txt").write_text("goose\nhonk\n")
        (tmp_path / name).symlink_to("a.txt")
    elif name == "x.jsonl":
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("goose\nhonk\n")
    else:
        kinds = {"large": words.cast(pa.large_string()), "dictionary": words.dictionary_encode()}
        column = {**kinds, "view": words.cast(pa.string_view())}[name]
        given = f"{name}.parquet"
        pa.parquet.write_table(pa.table({"text": column}), tmp_path / given)
    assert independent_read(bench.run(given, output="out é\n/x y"))[0] == [[3, 0], [4, 0]]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("mark.txt", b"\xef\xbb\xbf", "it holds no document"),
        ("blank.txt", b"\n \n\t\n", "it holds no document"),
        ("wide.txt", "goose".encode("utf-16"), "wide.txt, line 1: not UTF-8"),
        (
            "pretty.json",
            b'[\n  {"text": "goose"}\n]',
            "line 1: not JSON: [^\\n]*\\n  write each record on a line of its own",
        ),
        ("zero.parquet", b"", "zero.parquet: the file is empty"),
        ("not.parquet", b"PAR1 goose PAR1", "not.parquet: not a whole Parquet file"),
        (
            "junk.txt.gz",
            gzip.compress(b"goose\n") + b"junk",
            "junk.txt.gz: cannot be read: the compressed data is damaged",
        ),
    ],
)
def test_odd_inputs_that_hold_nothing(tmp_path, name, content, words):
    bench = Bench(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        bench.run(name)
    assert caught.value.exit_code == 2 and len(str(caught.value).splitlines()) <= 2 and bench.left() == []


@pytest.mark.parametrize(
    ("data", "given", "kind"),
    [
        (b'{"text": "goose"}\n', None, ("jsonl", "")),
        (b'\xef\xbb\xbf \n{"text": "goose"}\n', None, ("jsonl", "")),
        (b"goose honk\n", None, ("txt", "")),
        (b"{goose}\n", "txt", ("txt", "")),
        (gzip.compress(b"goose", mtime=0), "txt", ("txt", "gz")),
        (gzip.compress(b"goose", mtime=0), None, "say what it holds: format=txt"),
        (b"", None, "standard input is empty"),
    ],
)
def test_standard_input_shows_what_it_is(tmp_path, monkeypatch, data, given, kind):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))
    if isinstance(kind, str):
        with pytest.raises(DataError, match=kind):
            find_sources("-", base_dir=tmp_path, file_format=given)
        return
    (source,) = find_sources("-", base_dir=tmp_path, file_format=given)
    assert (source.format, source.compression) == kind
    assert sys.stdin.buffer.read() == data


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_rows_of_large_texts_come_few_at_a_time(folder, kind):
    """What is in memory is bounded by bytes, not by rows."""
    table = pa.table({"n": range(40), "text": [f"{number} " * (1 << 18) for number in range(10, 50)]})
    if kind == "parquet":
        pa.parquet.write_table(table, folder / "rows.parquet")
        name = "rows.parquet"
    else:
        (folder / "set").mkdir()
        with pa.OSFile(str(folder / "set" / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
            out.write_table(table)
        (folder / "set" / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
        name = "set"
    (source,) = find_sources(name, base_dir=folder)
    batches = [values for values, _ in column_batches(source, "text", skip_rows=3, batch_rows=1024)]
    assert [value for values in batches for value in values] == table["text"].to_pylist()[3:]
    assert max(map(len, batches)) <= 6


def test_standard_input_that_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(DataError, match="input: -: standard input is closed"):
        find_sources("-", base_dir=tmp_path)
