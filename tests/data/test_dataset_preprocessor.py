"""Preprocessing from Python gives the files that the command gives, and says what it cannot take."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from preprocess_cases import Bench, word_tokenizer, write_jsonl
from test_indexed_files import independent_read

import gooseslo.data
from gooseslo.data.indexed.sidecar import Sidecar
from gooseslo.data.preprocess.preprocessor import DatasetPreprocessor
from gooseslo.errors import DataError, GooseError

ROOT = Path(__file__).parents[2]


def preprocessor(**options):
    return DatasetPreprocessor(tokenizer=word_tokenizer(), **{"workers": 1, **options})


def test_a_list_of_texts(tmp_path, capsys):
    preprocessor(eod_token_id=9).preprocess(["goose\nhonk", "", "pond\n"], save_file_name=str(tmp_path / "out"))
    assert independent_read(tmp_path / "out") == ([[3, 4, 9], [5, 9]], [0, 1, 2])
    facts = Sidecar.read(tmp_path / "out")
    assert (facts.documents, facts.empty_documents, facts.eod_token_id) == (2, 1, 9)
    assert "2 documents, 5 tokens, 1 empty" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.bin", "out.idx", "out.json"]


@pytest.mark.parametrize("implementation", ["mmap", "lazy", "cached"])
def test_an_open_file_and_the_command_give_the_same(tmp_path, implementation):
    bench = Bench(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"goose honk\r\n\n  \npond\nnest")
    bench.run("a.txt", output="command")
    with (tmp_path / "a.txt").open() as file:
        preprocessor(binarization_impl=implementation).preprocess(file, save_file_name=tmp_path / "out")
    assert bench.files() == bench.files("command")


def test_records(tmp_path):
    texts = ["goose\u2028honk", "egg", ""]
    write_jsonl(tmp_path / "a.b.jsonl", texts, key="body")
    made = preprocessor(append_eod=False, chunk_size=1)
    for name in ("a.b", "a.b.jsonl"):
        assert list(made.open_jsonl(tmp_path / name, json_key="body")) == texts
    made.preprocess(made.open_jsonl(str(tmp_path / "a.b"), json_key="body"), save_file_name=tmp_path / "out")
    assert independent_read(tmp_path / "out")[0] == [[3, 4], [6]]


def test_a_line_about_the_speed_every_so_many_documents(tmp_path, capsys):
    preprocessor(chunk_size=10).preprocess(["goose"] * 95, save_file_name=tmp_path / "out", log_interval=30)
    lines = [line for line in capsys.readouterr().err.splitlines() if "documents/s" in line]
    assert len(lines) == 3 and all("tokens/s" in line and "MB/s" in line for line in lines)


def test_what_it_cannot_take(tmp_path):
    for workers in (0, -1):
        with pytest.raises(DataError, match=f"workers={workers}: must be at least 1"):
            preprocessor(workers=workers)
    with pytest.raises(DataError, match="append_eod=True: the tokenizer has no eos token"):
        DatasetPreprocessor(tokenizer=word_tokenizer(eos=None))
    DatasetPreprocessor(tokenizer=word_tokenizer(eos=None), append_eod=False)
    for options, words in (
        ({"eod_token_id": 10}, "eod_token_id=10: not an id"),
        ({"binarization_impl": "mapped"}, "binarization_impl=mapped: no such reader"),
        ({"chunk_size": 0}, "chunk_size=0: must be at least 1"),
    ):
        with pytest.raises(DataError, match=words):
            preprocessor(**options)
    made = preprocessor()
    for texts, words in (
        (["goose", None], "texts, row 2: 'text' is null, not a text"),
        ("goose", "an iterable of texts, not one text"),
        ([""], "no document"),
    ):
        with pytest.raises(DataError, match=words):
            made.preprocess(texts, save_file_name=tmp_path / "out")
    with pytest.raises(DataError, match=r"absent.jsonl: no such file"):
        made.open_jsonl(tmp_path / "absent")
    (tmp_path / "a.jsonl").write_text('{"text": "goose"}\n\n{"txt": 1}\n')
    with pytest.raises(DataError, match=r"a.jsonl, line 3: no key 'text'; keys: txt\n  set json_key=KEY"):
        made.preprocess(made.open_jsonl(tmp_path / "a"), save_file_name=tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    (tmp_path / "out.idx").touch()
    with pytest.raises(GooseError, match=r"exists \(out.idx\)"):
        made.preprocess(["goose"], save_file_name=tmp_path / "out")


def test_a_plain_script_needs_no_guard_for_its_main_module(tmp_path):
    word_tokenizer().save_pretrained(tmp_path / "t0")
    (tmp_path / "script.py").write_text(
        "from transformers import AutoTokenizer\n"
        "from gooseslo.data.preprocess.preprocessor import DatasetPreprocessor\n"
        "made = DatasetPreprocessor(tokenizer=AutoTokenizer.from_pretrained('t0', local_files_only=True), workers=2)\n"
        "made.preprocess(['goose', 'honk'], save_file_name='out')\n"
    )
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert independent_read(tmp_path / "out")[0] == [[3, 0], [4, 0]]


def test_a_name_is_no_tokenizer_and_no_texts(tmp_path):
    with pytest.raises(DataError, match="from_pretrained"):
        DatasetPreprocessor("data/a.tokenizer")
    with pytest.raises(DataError, match="iterable of texts, not NoneType"):
        DatasetPreprocessor(word_tokenizer()).preprocess(None, save_file_name=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_the_public_classes_are_listed():
    assert "DatasetPreprocessor" in dir(gooseslo.data)
