"""The standard library as text: which files, and a split that does not move."""

from pathlib import PurePosixPath

import pytest

from gooseslo.data.text.stdlib_corpus import StdlibCorpus, split_of
from gooseslo.errors import DataError


def test_the_library_of_this_interpreter():
    corpus = StdlibCorpus()
    names = [name for split in corpus.splits for name in corpus.files[split]]
    assert len(names) == len(set(names)) > 300
    assert PurePosixPath("argparse.py") in names
    excluded = {"test", "tests", "encodings", "pydoc_data", "idlelib", "site-packages", "__pycache__"}
    assert not [name for name in names if excluded.intersection(name.parts[:-1])]
    num_bytes = {split: sum((corpus.root / n).stat().st_size for n in corpus.files[split]) for split in corpus.splits}
    assert 6e6 < sum(num_bytes.values()) < 16e6
    assert 0.8 < num_bytes["train"] / sum(num_bytes.values()) < 0.97


def test_the_split_of_a_path_is_fixed():
    names = ["abc.py", "argparse.py", "asyncio/events.py", "json/decoder.py"]
    assert [split_of(PurePosixPath(name)) for name in names] == ["train", "train", "train", "valid"]


def test_files_that_do_not_decode_are_skipped(tmp_path):
    for index in range(300):
        (tmp_path / f"m{index}.py").write_bytes(b"\xff" if index % 2 else b"x = 1\n")
    corpus = StdlibCorpus(tmp_path)
    texts = [piece.text for split in corpus.splits for piece in corpus.pieces(split)]
    assert texts == ["x = 1\n"] * 150


def test_an_interpreter_without_sources(tmp_path):
    with pytest.raises(DataError, match="data=text"):
        StdlibCorpus(tmp_path).identity()
