"""Wrong configurations and inputs: exit code 2, a few lines that name the key, and nothing created."""

import time

import pytest

CASES = [
    (["paralel.tp=2"], "parallel.tp"),
    (["model=gpt3"], "gpt2"),
    (["modell=gpt2"], "model"),
    (["train.steps=2.0"], "train.steps=2.0"),
    (["train.steps=many"], "train.steps=many"),
    (["model.config.n_layr=3"], "model.config.n_layer"),
    (["model.config.n_layer=x"], "model.config.n_layer=x"),
    (["model.config.n_embd=100"], "model.config.n_embd=100"),
    (["model.config.attn_pdrop=7"], "dropout"),
    (["model.architecture=bert"], "gpt2"),
    (["parallel.tp=4"], "6 attention heads"),
    (["parallel.tp=2", "launcher.workers=3"], "3 is not divisible by 2"),
    (["parallel.pp=9"], "6 layers"),
    (["parallel.tp=0"], "at least 1"),
    (["train.global_batch_size=7"], "train.micro_batch_size"),
    (["train.sequence_length=513"], "512 positions"),
    (["data=text", "data.train=missing.txt"], "missing.txt"),
    (["data=text", "data.train=empty.txt"], "empty.txt"),
    (["data=text", "data.train=latin.txt"], "line 2"),
    (["data=text", "data.train=broken.jsonl"], "line 2"),
    (["data.tokenizer=big", "model.config.vocab_size=300"], "model.config.vocab_size"),
    (["data.vocab_size=9000"], "8192"),
]


@pytest.fixture
def inputs(shell):
    (shell.folder / "empty.txt").write_text("")
    (shell.folder / "latin.txt").write_bytes("goose\nsm\xf6r\n".encode("latin-1"))
    (shell.folder / "broken.jsonl").write_text('{"text": "goose"}\n{"text": \n')
    return shell


@pytest.fixture(scope="session")
def big_tokenizer(tmp_path_factory):
    """A tokenizer of 301 entries, one more than the model's table; the last is an added token."""
    from gooseslo.data.tokenizer import train_tokenizer

    tokenizer = train_tokenizer(iter(["goose honk pond egg reed wing nest " * 50]), vocab_size=270)
    tokenizer.add_tokens([f"<added{i}>" for i in range(301 - len(tokenizer))])
    folder = tmp_path_factory.mktemp("tokenizer") / "big"
    tokenizer.save_pretrained(folder)
    return folder


def files_of(shell):
    found = {*shell.folder.rglob("*"), *shell.cache.rglob("*")}
    return {path for path in found if shell.temporary not in (path, *path.parents)} | {*shell.left_behind}


@pytest.mark.parametrize(("args", "named"), CASES, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_a_fault_is_named_and_nothing_is_created(inputs, big_tokenizer, args, named):
    args = [arg.replace("=big", f"={big_tokenizer}") for arg in args]
    before = files_of(inputs)
    error = inputs("train", *args, code=2)
    assert named in error
    assert "Traceback" not in error
    assert len(error.strip().splitlines()) <= 5
    assert files_of(inputs) == before


def test_a_misspelt_key_answers_at_once(shell):
    began = time.monotonic()
    error = shell("train", "paralel.tp=2", code=2)
    assert time.monotonic() - began < 3
    assert len(error.splitlines()) <= 5


def test_all_faults_are_told_together(shell):
    error = shell("train", "train.global_batch_size=7", "parallel.tp=4", "train.precision=int8", code=2)
    for key in ("train.global_batch_size", "parallel.tp", "train.precision"):
        assert key in error


def test_generate_and_merge_say_what_they_need(trained):
    assert "merge-checkpoint" in trained("generate", "model.path=runs/run", "prompt=x", code=2)
    assert "output" in trained("merge-checkpoint", "input=runs/run", "output=merged", code=2)
    assert "input" in trained("merge-checkpoint", "input=nowhere", "output=other", code=2)
    assert "model.step" in trained("merge-checkpoint", "input=runs/run", "output=other", "model.step=5", code=2)
    assert not (trained.folder / "other").exists()
