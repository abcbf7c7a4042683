"""What `gooseslo preprocess` is asked for: one job, with all that it needs and nothing that it would ignore."""

import pytest

from gooseslo.errors import ConfigError
from gooseslo.schema.compose import compose_preprocess

INPUT = ["input=a.txt", "output=a", "tokenizer=t"]


def test_a_job_that_has_all_it_needs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert compose_preprocess(INPUT).chunk_size == 1024
    assert compose_preprocess(["merge=[a,b]", "output=c"]).merge == ["a", "b"]
    assert compose_preprocess(["inspect=a", "tokenizer=t"]).inspect == "a"


@pytest.mark.parametrize("job", [["inspect=a"], ["merge=[a,b]", "output=c"]])
@pytest.mark.parametrize(
    "given",
    [
        "train_tokenizer=300",
        "text_key=body",
        "format=txt",
        "document=file",
        "append_eod=false",
        "eod_token=x",
        "special_tokens=tokenizer",
        "workers=2",
        "chunk_size=10",
        "resume=true",
        "on_error=skip",
    ],
)
def test_what_would_be_ignored_is_refused(job, given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    key = given.partition("=")[0]
    with pytest.raises(ConfigError, match=f"{key}: is of no use with {job[0].partition('=')[0]}\n  leave it out"):
        compose_preprocess([*job, given])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "input: is required"),
        (["input=a", "merge=[a,b]", "output=c"], "input: and merge|input and merge are given"),
        (["input=a.txt", "output=a"], "tokenizer, train_tokenizer: one of the two is required"),
        ([*INPUT, "train_tokenizer=300"], "tokenizer, train_tokenizer: exclude each other"),
        (["input=a.txt", "tokenizer=t"], "output: is required"),
        ([*INPUT, "eod_token=x", "append_eod=false"], "eod_token=x: is of no use with append_eod=false"),
        (["input=-", "output=a", "tokenizer=t", "resume=true"], "resume=true: standard input cannot be read again"),
        ([*INPUT, "chunk_size=0"], "chunk_size=0"),
        ([*INPUT, "on_error=stop"], "on_error=stop"),
        (["input=a.txt", "tokenizer=t", "output=o/" + "x" * 241], "output=.*: its name has 241 bytes; 240 leave room"),
        (["input=a.txt", "tokenizer=t", f"output={'x' * 300}/o"], "output=.*: cannot be made: File name too long"),
        (["merge=[a]", "output=c"], "is not a list of two prefixes or more"),
    ],
)
def test_a_job_that_is_none_is_refused(given, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words):
        compose_preprocess(given)
