"""Token files: what they hold, when they are made anew, and that a killed or failed run leaves nothing behind."""

import json
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from gooseslo.data.text import prepare as prepare_module
from gooseslo.data.text.packed import PackedDataset
from gooseslo.data.text.prepare import prepare
from gooseslo.data.text.text_files import TextCorpus
from gooseslo.errors import DataError
from gooseslo.staging import create_staging


@pytest.fixture
def text_dir(tmp_path):
    records = [{"text": f"the goose {i} honks at the pond"} for i in range(200)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "b.txt").write_text("held out: an egg, a nest\n" * 20)
    return tmp_path


def run(folder, *, tokenizer=None, vocab_size=300, model_vocab_size=1000, messages=None, **sources):
    sources = sources or {"train": "a.jsonl", "valid": "b.txt"}
    return prepare(
        TextCorpus(base_dir=folder, **sources),
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        model_vocab_size=model_vocab_size,
        cache_dir=folder / "cache",
        base_dir=folder,
        progress=(messages if messages is not None else []).append,
    )


def tokens_of(prepared, split):
    file = prepared.splits[split]
    return np.fromfile(file.path, dtype=file.dtype)


def test_tokens_spell_the_documents_each_ended(text_dir):
    prepared = run(text_dir)
    tokenizer = AutoTokenizer.from_pretrained(prepared.tokenizer_folder)
    tokens = tokens_of(prepared, "train")
    assert prepared.splits["train"].num_tokens == len(tokens) and tokens[-1] == prepared.eos_token_id
    documents = tokenizer.decode(tokens).split("<|endoftext|>")
    assert documents == [f"the goose {i} honks at the pond" for i in range(200)] + [""]
    assert tokenizer.decode(tokens_of(prepared, "valid")) == "held out: an egg, a nest\n" * 20 + "<|endoftext|>"
    assert prepared.vocab_size == len(tokenizer) <= 300


def test_second_run_finds_the_files(text_dir):
    messages = []
    first = run(text_dir, messages=messages)
    assert any("training a tokenizer" in m for m in messages) and any("tokenising" in m for m in messages)
    messages.clear()
    assert run(text_dir, messages=messages) == first and messages == []


def test_what_it_depends_on_makes_it_anew(text_dir):
    folders = {run(text_dir).folder, run(text_dir, vocab_size=290).folder}
    (text_dir / "b.txt").write_text("changed")
    folders.add(run(text_dir).folder)
    folders.add(run(text_dir, train={"path": "a.jsonl", "end": 0.5}).folder)
    assert len(folders) == 4


@pytest.mark.parametrize(
    "damage", [lambda f: (f / "train.bin").write_bytes(b"x"), lambda f: (f / "meta.json").unlink()]
)
def test_a_damaged_cache_is_made_anew(text_dir, damage):
    prepared = run(text_dir)
    content = (prepared.folder / "train.bin").read_bytes()
    damage(prepared.folder)
    assert run(text_dir) == prepared
    assert (prepared.folder / "train.bin").read_bytes() == content
    assert os.listdir(text_dir / "cache") == [prepared.folder.name]


def test_given_tokenizer_with_more_ids_than_two_bytes_hold(text_dir):
    words = WordLevel({"<eod>": 0} | {f"w{i}": i for i in range(1, 70_001)}, unk_token="<eod>")
    backend = Tokenizer(words)
    backend.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eod>").save_pretrained(text_dir / "tok")
    (text_dir / "c.txt").write_text("w1 w70000")
    prepared = run(text_dir, tokenizer="tok", vocab_size=None, model_vocab_size=80_000, train="c.txt")
    assert prepared.splits["train"].dtype == "uint32"
    assert tokens_of(prepared, "train").tolist() == [1, 70_000, 0]
    with pytest.raises(DataError, match=r"data\.tokenizer=tok: 70001 entries"):
        run(text_dir, tokenizer="tok", vocab_size=None, model_vocab_size=70_000, train="c.txt")


def test_tokenizer_and_size_together_are_refused(text_dir):
    with pytest.raises(DataError, match="leave one of the two out"):
        run(text_dir, tokenizer="tok")


@pytest.mark.parametrize("split", ["train", "valid"])
def test_bad_data_leaves_nothing(text_dir, split):
    (text_dir / "bad.txt").write_bytes(b"ok\n\xff")
    sources = {"train": "a.jsonl", "valid": "b.txt"} | {split: "bad.txt"}
    with pytest.raises(DataError, match=r"bad\.txt, line 2"):
        run(text_dir, **sources)
    assert not (text_dir / "cache").exists()


def test_a_cache_folder_that_cannot_be_made_is_named(text_dir):
    (text_dir / "cache").write_text("a file")
    with pytest.raises(DataError, match=r"kept in .*cache: .*\n.*XDG_CACHE_HOME"):
        run(text_dir)


def test_blank_text_is_refused(text_dir):
    (text_dir / "blank.txt").write_text(" \n \n")
    with pytest.raises(DataError, match=r"data\.valid: its files hold no text"):
        run(text_dir, train="a.jsonl", valid="blank.txt")


def test_pieces_of_a_document_share_one_end(text_dir, monkeypatch):
    monkeypatch.setattr("gooseslo.data.text.text_files._PIECE_CHARACTERS", 64)
    monkeypatch.setattr(prepare_module, "_BATCH_CHARACTERS", 100)
    tokens = tokens_of(run(text_dir), "valid")
    assert (tokens == 0).sum() == 1 and tokens[-1] == 0


def start(target, *args):
    process = multiprocessing.get_context("fork").Process(target=target, args=args)
    process.start()
    return process


def test_two_processes_at_once_both_succeed(text_dir):
    processes = [start(run, text_dir) for _ in range(3)]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(os.listdir(text_dir / "cache")) == 1


def _killed_while_tokenising(folder):
    prepare_module._tokenise = lambda corpus, tokenizer, staging, progress: (
        (staging / "train.bin").write_bytes(b"half"),
        os.kill(os.getpid(), signal.SIGKILL),
    )
    run(folder)


def test_a_killed_run_leaves_nothing_final_and_the_next_one_cleans_up(text_dir):
    process = start(_killed_while_tokenising, text_dir)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    (left,) = os.listdir(text_dir / "cache")
    assert left.startswith(".")
    living = create_staging(text_dir / "cache" / "other")
    prepared = run(text_dir)
    assert set(os.listdir(text_dir / "cache")) == {prepared.folder.name, living.name}


def _worker(prepared, queue):
    tokenizer = AutoTokenizer.from_pretrained(prepared.tokenizer_folder)
    num_ids = len(tokenizer(["goose"] * 200)["input_ids"])
    weight = torch.randn(512, 512, requires_grad=True)
    (weight @ weight).sum().backward()
    queue.put((num_ids, len(prepared.dataset("train", 16).sample(0).labels)))


def test_workers_forked_after_it_tokenise_and_compute(text_dir):
    prepared = run(text_dir)
    queue = multiprocessing.get_context("fork").SimpleQueue()
    process = start(_worker, prepared, queue)
    deadline = time.monotonic() + 60
    while queue.empty() and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.join(5)
    if process.is_alive():
        process.kill()
    assert process.exitcode == 0 and queue.get() == (200, 16)


def test_dataset_of_a_split(text_dir):
    prepared = run(text_dir)
    assert isinstance(prepared.dataset("valid", 8), PackedDataset)
    with pytest.raises(DataError, match=r"data\.test"):
        prepared.dataset("test", 8)
    with pytest.raises(DataError) as caught:
        prepared.dataset("valid", 5000)
    assert all(word in str(caught.value) for word in ["data.valid", "5001", "train.sequence_length=5000"])
