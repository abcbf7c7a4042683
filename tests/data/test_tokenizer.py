"""Tokenizers: the built-in one is complete and deterministic, and one too large for the model is refused."""

import json
import subprocess
import sys

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from gooseslo.data.tokenizers.tokenizer import (
    DocumentEncoder,
    check_fits,
    choose_vocab_size,
    fingerprint,
    load_tokenizer,
    rendering,
    table_size,
    train_tokenizer,
)
from gooseslo.errors import DataError

TEXTS = ["the goose honks at the pond\n" * 50, "def f(x):\n    return x\n" * 50]


def word_tokenizer():
    words = ["<eod>", "<unk>", "<pad>", "goose", "honk", "pond", "egg", "reed", "wing", "nest"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eod>", pad_token="<pad>", unk_token="<unk>")


def test_added_tokens_count_towards_the_table():
    tokenizer = word_tokenizer()
    check_fits(tokenizer, name="t0", model_vocab_size=10)
    tokenizer.add_tokens(["gander"])
    assert tokenizer.vocab_size == 10 and table_size(tokenizer) == 11
    with pytest.raises(DataError) as caught:
        check_fits(tokenizer, name="t0", model_vocab_size=10)
    assert all(word in str(caught.value) for word in ["data.tokenizer=t0", "11", "model.config.vocab_size=10"])


def test_settings_of_an_earlier_call_are_not_the_tokenizers():
    tokenizer = word_tokenizer()
    before = fingerprint(tokenizer)
    tokenizer(["goose", "goose honk pond"], padding=True, truncation=True, max_length=2)
    assert fingerprint(tokenizer) == before
    tokenizer.add_tokens(["gander"])
    assert fingerprint(tokenizer) != before


def test_built_in_tokenizer_spells_every_text_and_reloads(tmp_path):
    tokenizer = train_tokenizer(iter(TEXTS), vocab_size=300)
    assert len(tokenizer) <= 300 and tokenizer.eos_token_id == 0
    assert tokenizer.eos_token == tokenizer.bos_token == tokenizer.pad_token == "<|endoftext|>"
    tokenizer.save_pretrained(tmp_path)
    text = "  naïve\t🪿 goose\r\n\x00"
    for each in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert each.decode(each(text)["input_ids"]) == text
        assert each.eos_token_id == 0


def test_training_is_deterministic():
    first, second = (train_tokenizer(iter(TEXTS), vocab_size=290) for _ in range(2))
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()


def test_smallest_built_in_tokenizer_is_the_bytes():
    tokenizer = train_tokenizer(iter(TEXTS), vocab_size=257)
    assert len(tokenizer) == 257
    assert len(tokenizer("goose")["input_ids"]) == 5


@pytest.mark.parametrize(
    ("asked", "table", "size"), [(None, 50257, 8192), (None, 4000, 4000), (500, 50257, 500), (257, 257, 257)]
)
def test_size_of_the_built_in_tokenizer(asked, table, size):
    assert choose_vocab_size(asked, model_vocab_size=table) == size


@pytest.mark.parametrize(
    ("asked", "table", "words"),
    [
        (256, 50257, ["data.vocab_size=256", "257"]),
        (9000, 8192, ["data.vocab_size=9000", "model.config.vocab_size=8192"]),
        (None, 40, ["model.config.vocab_size=40", "257"]),
    ],
)
def test_sizes_that_cannot_be(asked, table, words):
    with pytest.raises(DataError) as caught:
        choose_vocab_size(asked, model_vocab_size=table)
    assert all(word in str(caught.value) for word in words)


def test_a_document_that_spells_the_end_of_text_stays_one_document():
    tokenizer = train_tokenizer(iter(TEXTS), vocab_size=300)
    text = "goose <|endoftext|> honk"
    (ids,) = DocumentEncoder(tokenizer)([text])
    assert 0 not in ids and tokenizer.decode(ids) == text
    assert 0 in tokenizer(text)["input_ids"]  # the run's own tokenizer is left as it was


@pytest.mark.parametrize("name", ["TokenizersBackend", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("make", ["words", "bytes"])
def test_the_plain_class_needs_no_torch_and_is_what_auto_gives(tmp_path, make, name):
    tokenizer = word_tokenizer() if make == "words" else train_tokenizer(iter(TEXTS), vocab_size=300)
    tokenizer.add_tokens(["gander"])
    tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": name}))
    program = f"""
import sys
from pathlib import Path
from gooseslo.data.tokenizers.tokenizer import fingerprint, load_tokenizer, rendering
tokenizer = load_tokenizer({str(tmp_path)!r}, base_dir=Path())
print(type(tokenizer).__name__, fingerprint(tokenizer), rendering(tokenizer), "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    auto = AutoTokenizer.from_pretrained(tmp_path)
    assert done.stdout.split("\n")[0] == f"{type(auto).__name__} {fingerprint(auto)} {rendering(auto)} False"


@pytest.mark.parametrize("beside", [{"config.json": {"model_type": "gpt2"}}, {}])
def test_any_other_class_is_for_auto_to_choose(tmp_path, beside):
    train_tokenizer(iter(TEXTS), vocab_size=300).save_pretrained(tmp_path)
    for name, content in beside.items():
        (tmp_path / name).write_text(json.dumps(content))
    if not beside:
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "GPT2Tokenizer"}))
    found, auto = load_tokenizer(str(tmp_path), base_dir=tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert type(found) is type(auto) and fingerprint(found) == fingerprint(auto)


def test_neither_folder_nor_cached_name(tmp_path):
    with pytest.raises(DataError) as caught:
        load_tokenizer("nobody/no-such-tokenizer", base_dir=tmp_path)
    assert "data.tokenizer=nobody/no-such-tokenizer" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [("data/a", "nearest: data/a.tokenizer"), ("data/x.tokenizer", "no such folder"), ("./a", "no such folder")],
)
def test_a_folder_one_step_off(tmp_path, name, words):
    (tmp_path / "data" / "a.tokenizer").mkdir(parents=True)
    with pytest.raises(DataError, match=words) as caught:
        load_tokenizer(name, base_dir=tmp_path)
    assert "hf download" not in str(caught.value)


def test_folder_without_a_tokenizer(tmp_path):
    (tmp_path / "tok").mkdir()
    with pytest.raises(DataError, match="no usable tokenizer"):
        load_tokenizer("tok", base_dir=tmp_path)


def test_tokenizer_without_an_end_of_text(tmp_path):
    tokenizer = word_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "tok")
    with pytest.raises(DataError, match="eos_token"):
        load_tokenizer("tok", base_dir=tmp_path)
