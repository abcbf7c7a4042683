"""A disk that is full after so many bytes: one line, exit code 1, nothing under a final name, and resume goes on."""

import resource

import pytest
from preprocess_cases import Bench, texts, write_jsonl

from gooseslo.data.preprocess import tokenise
from gooseslo.errors import DataWriteError

TRAINED = {"tokenizer": None, "train_tokenizer": 300}


@pytest.mark.parametrize("size", [0, 100, 1500, 10_000, 30_000])
@pytest.mark.parametrize("options", [{}, TRAINED], ids=["given", "trained"])
def test_a_disk_that_takes_so_many_bytes_of_a_file(tmp_path, monkeypatch, size, options):
    """From the first journal on: the trained tokenizer, the tokens, the index."""
    monkeypatch.setattr(tokenise, "_JOURNAL_SECONDS", 0.0)
    bench = Bench(tmp_path)
    write_jsonl(tmp_path / "docs.jsonl", texts(1000))
    bench.run("docs.jsonl", output="whole", **options)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with pytest.raises(
            DataWriteError, match=r"File too large\n  make room, then go on with resume=true$"
        ) as caught:
            bench.run("docs.jsonl", chunk_size=50, **options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.exit_code == 1 and bench.left() in ([], [".out.preprocess"])
    bench.run("docs.jsonl", resume=True, **options)
    assert bench.files() == bench.files("whole") and ".out.preprocess" not in bench.left()
