"""Wrong configurations and inputs: exit code 2, a few lines that name the key, and nothing created."""

import time

import pytest

# What is matched is the rule or the way out, never the user's own words, which any message would repeat.
CASES = [
    (["paralel.tp=2"], "nearest: parallel.tp"),
    (["model=gpt3"], "nearest: gpt2;"),
    (["modell=gpt2"], "nearest: model\n"),
    (["train.steps=2.0"], "is not an integer"),
    (["train.steps=many"], "is not an integer"),
    (["model.config.n_layr=3"], "did you mean model.config.n_layer?"),
    (["model.config.n_layer=x"], "expected int, got str"),
    (["model.config.n_embd=100"], "is not divisible by model.config.n_head=6"),
    (["model.config.attn_pdrop=7"], "must be a probability, from 0 to 1"),
    (["model.architecture=bert"], "there are: gpt2"),
    (["parallel.tp=4"], "6 attention heads"),
    (["parallel.tp=2", "launcher.workers=3"], "3 is not divisible by 2"),
    (["parallel.pp=9"], "6 layers"),
    (["parallel.tp=0"], "must be at least 1"),
    (["train.global_batch_size=7"], "is not divisible by train.micro_batch_size"),
    (["train.sequence_length=513"], "512 positions"),
    (["data=synthetic", "parallel.tp=3", "model.config.vocab_size=2"], "smaller than parallel.tp=3"),
    (["run.name=a", "run.dir=b"], "each names the run folder"),
    (["data=text", "data.train=missing.txt"], "missing.txt: no such file"),
    (["data=text", "data.train=empty.txt"], "empty.txt: the file is empty"),
    (["data=text", "data.train=latin.txt"], "latin.txt, line 2: not UTF-8"),
    (["data=text", "data.train=broken.jsonl"], "broken.jsonl, line 2: not JSON"),
    (["data.tokenizer=big", "model.config.vocab_size=300"], "301 entries (added tokens included) do not fit"),
    (["data.vocab_size=9000"], "larger than the model's table of 8192 tokens"),
]


@pytest.fixture
def inputs(shell):
    """Bad files, and a cache in which nothing was prepared yet."""
    shell.cache = shell.folder / "cache"
    shell.cache.mkdir()
    (shell.folder / "empty.txt").write_text("")
    (shell.folder / "latin.txt").write_bytes("goose\nsm\xf6r\n".encode("latin-1"))
    (shell.folder / "broken.jsonl").write_text('{"text": "goose"}\n{"text": \n')
    return shell


@pytest.fixture(scope="session")
def big_tokenizer(tmp_path_factory):
    """A tokenizer of 301 entries, one more than the model's table; the last is an added token."""
    from gooseslo.data.tokenizers.tokenizer import train_tokenizer

    tokenizer = train_tokenizer(iter(["goose honk pond egg reed wing nest " * 50]), vocab_size=270)
    tokenizer.add_tokens([f"<added{i}>" for i in range(301 - len(tokenizer))])
    folder = tmp_path_factory.mktemp("tokenizer") / "big"
    tokenizer.save_pretrained(folder)
    return folder


def files_of(shell):
    return {path for path in shell.folder.rglob("*") if shell.temporary not in (path, *path.parents)} | {
        *shell.left_behind
    }


@pytest.mark.parametrize(("args", "named"), CASES, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_a_fault_is_named_and_nothing_is_created(inputs, big_tokenizer, args, named):
    args = [arg.replace("=big", f"={big_tokenizer}") for arg in args]
    before = files_of(inputs)
    error = inputs("train", *args, code=2)
    assert named in error
    assert "Traceback" not in error
    assert len(error.strip().splitlines()) <= 5
    assert files_of(inputs) == before
    assert [*inputs.cache.iterdir()] == []


def test_a_misspelt_key_answers_at_once(shell):
    began = time.monotonic()
    error = shell("train", "paralel.tp=2", code=2)
    assert time.monotonic() - began < 3
    assert "nearest: parallel.tp" in error
    assert len(error.splitlines()) <= 5


def test_all_faults_are_told_together(shell):
    error = shell("train", "train.global_batch_size=7", "parallel.tp=4", "train.precision=int8", code=2)
    for rule in ("is not divisible by train.micro_batch_size", "6 attention heads", "choices: auto, fp32"):
        assert rule in error


def test_generate_and_merge_say_what_they_need(trained):
    assert "merge it first: gooseslo merge" in trained("generate", "model.path=runs/run", "prompt=x", code=2)
    assert "exists and is not empty" in trained("merge-checkpoint", "input=runs/run", "output=merged", code=2)
    assert "no such folder" in trained("merge-checkpoint", "input=nowhere", "output=other", code=2)
    assert "latest, 3, 6" in trained("merge-checkpoint", "input=runs/run", "output=other", "model.step=5", code=2)
    assert not (trained.folder / "other").exists()
