"""An output that lies inside the input: what a run makes, and what was prepared before, is no text to be read."""

import pytest
from preprocess_cases import Bench, killed_at_a_name, texts, write_jsonl
from test_indexed_files import independent_read

from gooseslo.data.preprocess import tokenise
from gooseslo.data.preprocess.inputs import find_sources
from gooseslo.errors import DataError


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenise, "_JOURNAL_SECONDS", 1000.0)
    bench = Bench(tmp_path)
    (tmp_path / "in").mkdir()
    write_jsonl(tmp_path / "in" / "docs.jsonl", ["goose honk", "pond"])
    with (tmp_path / "in" / "docs.jsonl").open("a") as file:
        file.write("bad\n")
    return bench


TRAINED = {"tokenizer": None, "train_tokenizer": 300, "on_error": "skip"}


@pytest.mark.parametrize("given", ["in", "in/*", "in/**/*", "in/*.json*"])
@pytest.mark.parametrize("form", [None, "jsonl"])
def test_what_was_prepared_is_not_read(bench, given, form):
    """Tokens, index, facts, rejected records, the trained tokenizer, the cache: of two outputs in its folder."""
    bench.run("in/docs.jsonl", output="in/one", **TRAINED)
    bench.run(given, output="in/two", format=form, **TRAINED)
    (bench.folder / "in" / "two.cache").mkdir()
    (bench.folder / "in" / "two.cache" / "x.npy").write_text("x")
    prefix = bench.run(given, output="in/three", format=form, **TRAINED)
    assert len(independent_read(prefix)[0]) == 2
    assert (bench.folder / "in" / "one.rejected.jsonl").exists() and (bench.folder / "in" / "two.tokenizer").is_dir()


def test_a_json_beside_tokens_that_is_their_text_is_read(bench):
    """As Megatron's users keep them: corpus.json, corpus.bin, corpus.idx."""
    bench.run("in/docs.jsonl", output="in/corpus", on_error="skip")
    write_jsonl(bench.folder / "in" / "corpus.json", ["egg", "nest"])
    names = [source.name for source in find_sources("in", base_dir=bench.folder, output=bench.folder / "out")]
    assert names == ["in/corpus.json", "in/docs.jsonl"]


def test_names_that_only_look_like_it_are_read(bench):
    for name in ("a.rejected.jsonl", "b.json"):
        write_jsonl(bench.folder / "in" / name, ["egg"])
    (bench.folder / "in" / "c.tokenizer").mkdir()
    write_jsonl(bench.folder / "in" / "c.tokenizer" / "d.jsonl", ["egg"])
    (bench.folder / "in" / "a.bin").write_bytes(b"no index beside it")
    names = [source.name for source in find_sources("in", base_dir=bench.folder, output=bench.folder / "out")]
    assert names == ["in/a.rejected.jsonl", "in/b.json", "in/docs.jsonl", "in/c.tokenizer/d.jsonl"]


def test_a_name_that_is_typed_is_read(bench):
    prefix = bench.run("in/docs.jsonl", output="in/one", on_error="skip")
    bench.run("in/one.rejected.jsonl", output="out", text_key="record", on_error="skip")
    assert prefix.with_name("one.rejected.jsonl").exists() and len(independent_read(bench.folder / "out")[0]) == 1


def test_only_prepared_files(bench):
    bench.run("in/docs.jsonl", output="in/one", on_error="skip")
    (bench.folder / "in" / "docs.jsonl").unlink()
    with pytest.raises(DataError, match=r"in/\*: only prepared files fit this pattern"):
        bench.run("in/*")
    with pytest.raises(DataError, match=r"in: only prepared files lie in this folder"):
        bench.run("in")


@pytest.mark.parametrize("given", ["in", "in/**/*.json*"])
@pytest.mark.parametrize("renamed", range(6))
def test_a_run_killed_between_two_names_in_its_input(bench, monkeypatch, renamed, given):
    write_jsonl(bench.folder / "in" / "more.jsonl", texts(30))
    bench.run(given, output="whole", **TRAINED)
    with killed_at_a_name(monkeypatch, renamed):
        try:
            bench.run(given, output="in/out", **TRAINED)
        except KeyboardInterrupt:
            assert not (bench.folder / "in" / "out.idx").exists()
    bench.run(given, output="in/out", resume=True, **TRAINED)
    assert bench.files("in/out") == bench.files("whole")
