"""Prepared files are joined with their documents, or refused where they do not belong together; and shown."""

import hashlib
import io
import json
import shutil

import numpy as np
import pytest
from preprocess_cases import WORDS, Bench, word_tokenizer, write_jsonl
from test_indexed_files import independent_read, independent_write

from gooseslo.data.indexed import layout
from gooseslo.data.indexed.layout import pointers_of, write_joined_index
from gooseslo.data.indexed.sidecar import Sidecar
from gooseslo.data.preprocess.folder import WorkFolder
from gooseslo.data.preprocess.inspect import inspect
from gooseslo.data.preprocess.merge import merge
from gooseslo.data.preprocess.preprocessor import DatasetPreprocessor
from gooseslo.errors import DataError


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    write_jsonl(tmp_path / "a.jsonl", ["goose honk", "pond"])
    write_jsonl(tmp_path / "b.jsonl", ["egg reed wing"])
    for name in ("a", "b"):
        bench.run(f"{name}.jsonl", output=name)
    return bench


def join(bench, *names, output="out"):
    out, err = io.StringIO(), io.StringIO()
    merge(names, output, base_dir=bench.folder, out=out, err=err)
    bench.said = out.getvalue() + err.getvalue()
    return bench.folder / output


def test_a_merged_set_has_every_document(bench):
    prefix = join(bench, "a", "b", "a")
    assert independent_read(prefix) == ([[3, 4, 0], [5, 0], [6, 7, 8, 0], [3, 4, 0], [5, 0]], [0, 1, 2, 3, 4, 5])
    assert bench.files()[0] == bench.files("a")[0] + bench.files("b")[0] + bench.files("a")[0]
    a, merged = Sidecar.read(bench.folder / "a"), Sidecar.read(prefix)
    assert (merged.documents, merged.tokens, merged.largest_token_id) == (5, 14, 8)
    assert merged.tokenizer_hash == a.tokenizer_hash and len(merged.sources) == 3
    assert bench.left() == ["out.bin", "out.idx", "out.json"] and "5 documents, 14 tokens" in bench.said


def test_the_case_of_the_lost_document_index(tmp_path):
    bench = Bench(tmp_path)
    independent_write(tmp_path / "A", [[3, 4, 5], [6, 7]], [0, 1, 2], code=8)
    independent_write(tmp_path / "B", [[8, 9, 9, 3]], [0, 1], code=8)
    sequences, documents = independent_read(join(bench, "A", "B"))
    assert [len(sequence) for sequence in sequences] == [3, 2, 4] and documents == [0, 1, 2, 3]
    assert np.frombuffer(bench.files()[1], "<i8", 3, 34 + 12).tolist() == [0, 6, 10]
    assert bench.files()[0] == bench.files("A")[0] + bench.files("B")[0] and sequences[2] == [8, 9, 9, 3]
    assert "A, B: no .json beside it" in bench.said and bench.left() == ["out.bin", "out.idx"]


def test_documents_of_several_sequences_stay_whole(tmp_path):
    bench = Bench(tmp_path)
    independent_write(tmp_path / "A", [[3], [4], [5]], [0, 2, 3])
    independent_write(tmp_path / "B", [[6], [], [7]], [0, 0, 3])
    assert independent_read(join(bench, "A", "B")) == ([[3], [4], [5], [6], [], [7]], [0, 2, 3, 3, 6])


def test_positions_of_merged_sets_do_not_overflow(tmp_path):
    sizes = np.full(3, 400_000_000, dtype=np.int32)
    parts = [(sizes[:2], np.array([0, 2])), (sizes[2:], None)]
    assert np.concatenate(list(pointers_of(sizes[:2], sizes[2:], itemsize=4))).tolist() == POINTERS
    write_joined_index(tmp_path / "a.idx", dtype=np.dtype("<i4"), parts=parts)
    data = (tmp_path / "a.idx").read_bytes()
    assert np.frombuffer(data, "<i8", 3, 34 + 12).tolist() == POINTERS
    assert np.frombuffer(data, "<i8", 3, 34 + 36).tolist() == [0, 2, 3] and len(data) == 34 + 36 + 24


POINTERS = [0, 1_600_000_000, 3_200_000_000]


def test_an_index_is_joined_in_blocks(tmp_path, monkeypatch):
    """So that memory is bounded; the blocks do not show in the file."""
    draw = np.random.default_rng(0)
    parts = []
    for num_sequences in (0, 13, 1, 40):
        bounds = np.sort(draw.integers(0, num_sequences + 1, 9))
        parts.append((draw.integers(0, 9, num_sequences).astype("<i4"), np.array([0, *bounds, num_sequences])))
    parts.append((np.arange(11, dtype="<i4"), None))
    files, longest = [], []
    real = layout._write_blocks

    def write_blocks(file, blocks, dtype):
        real(file, (longest.append(len(block)) or block for block in blocks), dtype)

    monkeypatch.setattr(layout, "_write_blocks", write_blocks)
    for size in (1 << 20, 7):
        longest.clear()
        monkeypatch.setattr(layout, "_BLOCK", size)
        write_joined_index(tmp_path / "a.idx", dtype=np.dtype("<u2"), parts=parts)
        files.append((tmp_path / "a.idx").read_bytes())
    assert files[0] == files[1] and max(longest) == 7
    (tmp_path / "a.bin").write_bytes(bytes(2 * sum(int(sizes.sum()) for sizes, _ in parts)))
    sequences, documents = independent_read(tmp_path / "a")
    assert [len(sequence) for sequence in sequences] == np.concatenate([sizes for sizes, _ in parts]).tolist()
    assert documents == [
        0,
        *[0] * 10,
        *(parts[1][1][1:]),
        *(13 + parts[2][1][1:]),
        *(14 + parts[3][1][1:]),
        *range(55, 66),
    ]


def test_another_process_that_was_faster_is_not_written_over(bench, monkeypatch):
    """It had the lock when this one looked for an output of the name, and has given its files their names since."""
    real = WorkFolder.__enter__

    def enter(self):
        (bench.folder / "out.idx").write_bytes(b"theirs")
        return real(self)

    monkeypatch.setattr(WorkFolder, "__enter__", enter)
    with pytest.raises(DataError, match=r"output=out: exists \(out.idx\)"):
        join(bench, "a", "b")
    with pytest.raises(DataError, match=r"exists \(out.idx\)"):
        (bench.folder / "out.idx").unlink()
        DatasetPreprocessor(word_tokenizer(), workers=1).preprocess(["goose"], save_file_name=bench.folder / "out")
    assert (bench.folder / "out.idx").read_bytes() == b"theirs" and bench.left() == ["out.idx"]


def test_a_trained_tokenizer_goes_with_the_merged_files(bench):
    """The parts and their tokenizer may go: inspect and training read its copy."""
    (bench.folder / "deep" / "er").mkdir(parents=True)
    bench.run("a.jsonl", output="deep/one", tokenizer=None, train_tokenizer=300)
    bench.run("b.jsonl", output="two", tokenizer="deep/one.tokenizer")
    prefix = join(bench, "two", "deep/one", output="deep/er/both")
    assert Sidecar.read(prefix).tokenizer == "../one.tokenizer"
    prefix = join(bench, "deep/one", "two", output="deep/er/out")
    assert Sidecar.read(prefix).tokenizer == "out.tokenizer"
    for path in bench.folder.glob("**/one.*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert "'goose honk<|endoftext|>'" in shown(bench, "deep/er/out")
    again = join(bench, "deep/er/out", "deep/er/out", output="deep/again")
    assert Sidecar.read(again).tokenizer == "again.tokenizer" and (bench.folder / "deep" / "again.tokenizer").is_dir()


def test_a_tokenizer_is_found_from_anywhere(bench, tmp_path_factory):
    """What was named from the directory of the command is kept from that of the data on."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (bench.folder / "deep").mkdir()
    (bench.folder / "link").symlink_to(elsewhere)
    for output, name in (("deep/x", "../t0"), ("y", "t0"), ("deep/new/z", "../../t0")):
        prefix = bench.run("a.jsonl", output=output)
        assert Sidecar.read(prefix).tokenizer == name
        out = io.StringIO()
        inspect(str(prefix), tokenizer=None, base_dir=elsewhere, out=out)
        assert "'goose honk <eod>'" in out.getvalue()
    prefix = bench.run("a.jsonl", output="link/w")
    assert (elsewhere / Sidecar.read(prefix).tokenizer).resolve() == (bench.folder / "t0").resolve()
    assert "'goose honk <eod>'" in shown(bench, "link/w")
    prefix = join(bench, "deep/x", "y", output="deep/new/both")
    assert Sidecar.read(prefix).tokenizer == "../../t0"
    prefix = bench.run("a.jsonl", output="v", tokenizer=str(bench.folder / "t0"))
    assert Sidecar.read(prefix).tokenizer == str(bench.folder / "t0")


def test_the_hash_of_the_tokens(bench):
    for prefix in (bench.folder / "a", join(bench, "a", "b")):
        assert Sidecar.read(prefix).tokens_sha256 == hashlib.sha256(bench.files(prefix.name)[0]).hexdigest()


def test_files_of_a_version_without_the_hash_are_joined(bench):
    for name in ("a", "b"):
        path = bench.folder / f"{name}.json"
        content = json.loads(path.read_text())
        del content["tokens_sha256"]
        path.write_text(json.dumps(content | {"format": 1}))
    assert Sidecar.read(bench.folder / "a").tokens_sha256 is None
    prefix = join(bench, "a", "b")
    assert Sidecar.read(prefix).tokens_sha256 == hashlib.sha256(bench.files()[0]).hexdigest()


def test_narrow_ids_are_widened(tmp_path):
    bench = Bench(tmp_path)
    independent_write(tmp_path / "A", [[3, 65_535]], [0, 1], code=8)
    independent_write(tmp_path / "B", [[70_000]], [0, 1], code=4)
    independent_write(tmp_path / "C", [[7]], [0, 1], code=5)
    assert independent_read(join(bench, "A", "B"))[0] == [[3, 65_535], [70_000]]
    assert bench.files()[1][17] == 4 and "A widened to 32-bit ids" in bench.said
    with pytest.raises(DataError, match="tokens of different types: A holds uint16, C holds int64"):
        join(bench, "A", "C", output="other")


def test_what_does_not_belong_together(bench):
    word_tokenizer([*WORDS, "gander"]).save_pretrained(bench.folder / "t1")
    bench.run("b.jsonl", output="c", tokenizer="t1")
    bench.run("b.jsonl", output="d", append_eod=False)
    cases = {
        "c": "merge: c was made with another tokenizer \\(t1\\) than a \\(t0\\)",
        "d": "merge: documents of d and a end with different tokens",
        "absent": "merge: .*absent.idx: no such file",
    }
    for name, words in cases.items():
        with pytest.raises(DataError, match=words):
            join(bench, "a", name)
    shutil.copy(bench.folder / "b.json", bench.folder / "a.json")
    with pytest.raises(DataError, match=r"merge: .*a.json: speaks of 1 documents and 4 tokens"):
        join(bench, "a", "b")
    with pytest.raises(DataError, match=r"output=b: exists \(b.bin, b.idx, b.json\)"):
        join(bench, "b", "d", output="b")
    assert bench.left() == []


def shown(bench, name, tokenizer=None):
    out = io.StringIO()
    inspect(name, tokenizer=tokenizer, base_dir=bench.folder, out=out)
    return out.getvalue()


def test_inspect_shows_counts_and_text(bench):
    page = shown(bench, "a")
    assert page == shown(bench, "a.bin") == shown(bench, "a.idx")
    assert "documents   2" in page and "tokens      5 of uint16" in page and "2 to 3 tokens, 2.5 on average" in page
    assert "'goose honk <eod>'" in page and "'pond <eod>'" in page and "t0, 10 entries" in page


def test_inspect_without_the_tokenizer_shows_ids(bench):
    shutil.rmtree(bench.folder / "t0")
    assert "t0, is not here as it was" in shown(bench, "a") and "\n  3 4 0\n" in shown(bench, "a")
    word_tokenizer([*WORDS, "gander"]).save_pretrained(bench.folder / "t0")
    assert "is not here as it was" in shown(bench, "a")
    page = shown(bench, "a", tokenizer="t0")
    assert "warning: tokenizer=t0 is not the one that made the data" in page and "'goose honk <eod>'" in page
    (bench.folder / "a.json").unlink()
    assert "no tokenizer is known" in shown(bench, "a") and "\n  3 4 0\n" in shown(bench, "a")


def test_inspect_cuts_a_long_document(bench):
    write_jsonl(bench.folder / "l.jsonl", ["goose " * 500])
    bench.run("l.jsonl", output="l")
    assert "document 0, 501 tokens ... and 381 more" in shown(bench, "l")
    with pytest.raises(DataError, match=r"inspect: .*absent.idx: no such file"):
        shown(bench, "absent")
