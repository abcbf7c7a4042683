"""The tokenizer beside the checkpoints of a run on prepared tokens: the one that made them, and nothing else."""

import logging

import pytest

from gooseslo.data.tokenizers.kept_tokenizer import find_tokenizer
from gooseslo.data.tokenizers.tokenizer import fingerprint, train_tokenizer
from gooseslo.errors import DataError


@pytest.fixture
def given(tmp_path):
    """A folder with a tokenizer and a model's weights, and the tokenizer's hash."""
    tokenizer = train_tokenizer(iter(["goose honk pond"]), vocab_size=270)
    tokenizer.save_pretrained(tmp_path / "data" / "tok")
    (tmp_path / "data" / "tok" / "model.safetensors").write_bytes(b"large")
    return tmp_path / "data", fingerprint(tokenizer)


def find(given, name, made_with, *, size=300):
    folder, _ = given
    cache_dir = folder.parent / "cache"
    return find_tokenizer(name, made_with=made_with, folders=(folder,), model_vocab_size=size, cache_dir=cache_dir)


def test_its_own_files_alone_are_kept(given):
    for name, made_with in ((None, ("tok", given[1])), ("tok", ("elsewhere", given[1])), ("tok", None)):
        found = find(given, name, made_with)
        assert found.eos_token_id == 0
        names = {path.name for path in found.folder.iterdir()}
        assert "tokenizer.json" in names and "model.safetensors" not in names


def test_another_one_than_made_the_tokens(given, caplog):
    with pytest.raises(DataError, match=r"is not the tokenizer that made data.train, tok"):
        find(given, "tok", ("tok", "0" * 64))
    with caplog.at_level(logging.WARNING):
        assert find(given, None, ("tok", "0" * 64)) is None
    assert len(caplog.records) == 1


def test_what_was_not_given_is_not_demanded(given, caplog):
    with caplog.at_level(logging.WARNING):
        assert find(given, None, ("gone", given[1])) is None
    assert len(caplog.records) == 1 and "no tokenizer will lie beside the checkpoints" in caplog.text
    assert find(given, None, None) is None and len(caplog.records) == 1
    with pytest.raises(DataError, match=r"data.tokenizer=gone: neither a folder nor a Hub name"):
        find(given, "gone", ("gone", given[1]))
    with pytest.raises(DataError, match="do not fit the model's table"):
        find(given, "tok", None, size=260)
