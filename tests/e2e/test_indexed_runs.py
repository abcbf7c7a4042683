"""`data=indexed` from the command line: blends, ranges, refusals; the same samples at any layout and after a stop."""

import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import SMALL

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from indexed_fixtures import write_prefix, write_sidecar

TINY = [key for key in SMALL if "vocab" not in key] + [
    "model.config.n_layer=2",
    "model.config.vocab_size=300",
    "train.sequence_length=16",
    "data=indexed",
]
BLEND = ["data.train=[{path: a, weight: 0.7, end: 0.9}, {path: b, weight: 0.3}]", "data.valid=[{path: a, start: 0.9}]"]


def documents(seed, count):
    """Each counts up from where it begins: something can be learnt, and a token tells its document's place."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 200) + np.arange(rng.integers(20, 60)) for _ in range(count)]


@pytest.fixture
def prepared(shell):
    write_prefix(shell.folder / "a", documents(0, 60))
    write_prefix(shell.folder / "b", documents(1, 12))
    return shell


def test_a_blend_is_trained_and_evaluated(prepared):
    write_sidecar(prepared.folder / "a", documents(0, 60))
    halves = "data.valid=[{path: a, start: 0.9, end: 0.95, weight: 1}, {path: a, start: 0.95, weight: 0}]"
    process = prepared.start(
        "train", *TINY, BLEND[0], halves, "train.steps=5", "parallel.pp=2", "run.name=run", "data.workers=2"
    )
    out, error = process.communicate(timeout=100)
    assert process.returncode == 0, error
    assert "data indexed" in out and "looking for the largest token id in" in out and "b.bin" in out
    assert error.count("warning:") == 1 and "no tokenizer will lie beside the checkpoints" in error
    left_out = [line for line in out.splitlines() if line.startswith("warning: data.valid")]
    assert [line.split()[1] for line in left_out] == ["data.valid[0]:", "data.valid[1]:"]
    records = prepared.metrics("run")
    assert [record["consumed_tokens"] for record in records if record["kind"] == "train"][-1] == 5 * 8 * 16
    assert [record["kind"] for record in records].count("eval") == 1
    kept = list((prepared.folder / "a.cache").glob("documents-*.npy"))
    assert len(kept) == 2, "of both splits; a part without weight is not read"
    config = (prepared.folder / "runs/run/checkpoints/step-00000005/config.json").read_text()
    assert '"eos_token_id": 0' in config


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["data.train=[a,{path: b, weight: -1}]"], "data.train[1].weight=-1: must be at least 0"),
        (["data.train=a", "data.valid={path: a, start: 0.999}"], "data.valid: 0 of the 60 documents"),
        (["data.train=a", "model.config.vocab_size=100"], "data.train: the largest token id in "),
    ],
)
def test_what_cannot_be_trained_on_is_one_paragraph(prepared, arguments, words):
    error = prepared("train", *TINY, *arguments, "run.name=run", code=2)
    assert error.startswith(words) and "Traceback" not in error and len(error.splitlines()) <= 5
    assert not (prepared.folder / "runs").exists()


def test_an_empty_held_out_split_does_not_matter_without_evaluation(prepared):
    options = ["data.train=a", "data.valid={path: a, start: 0.999}", "train.eval_batches=0", "train.steps=2"]
    prepared("train", *TINY, *options, "run.name=run")
    assert len(prepared.losses("run")) == 2


def test_a_run_goes_on_only_with_the_data_it_began_with(prepared):
    options = [*TINY, "data.train=a", "train.steps=4", "train.eval_batches=0", "run.name=run"]
    prepared("train", *options, "train.stop_after=2")
    changed = documents(0, 60)
    changed[3] = changed[3][::-1]
    write_prefix(prepared.folder / "a", changed)
    error = prepared("train", *options, code=2)
    assert error.startswith("data: the text or the tokenizer is not that of")
    write_prefix(prepared.folder / "a", documents(0, 60))
    prepared("train", *options, "data.workers=0", "data.reader=cached")
    assert len(prepared.losses("run")) == 4


@pytest.mark.slow
def test_documents_apart_go_on_at_another_layout(prepared):
    """In fp64, in which another sample, or a document that sees another, would show."""
    options = [*TINY, *BLEND, "data.reset_at_document=true", "train.steps=4", "train.precision=fp64"]
    prepared("train", *options, "run.name=one")
    prepared("train", *options, "run.name=stopped", "parallel.pp=2", "train.stop_after=2")
    prepared("train", *options, "run.name=stopped", "parallel.dp=2", "train.micro_batch_size=4")
    assert prepared.losses("stopped") == pytest.approx(prepared.losses("one"), abs=1e-9)
    tokens = [[record["tokens"] for record in prepared.metrics(name, "train")] for name in ("one", "stopped")]
    assert tokens[0] == tokens[1] and max(tokens[0]) < 8 * 16, "the end of a document predicts nothing"
    (one, *_), (other, *_) = (prepared.metrics(name, "eval")[-1:] for name in ("one", "stopped"))
    assert other["loss"] == pytest.approx(one["loss"], abs=1e-9) and other["samples"] == one["samples"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_forty_steps_are_the_same_at_any_layout_and_after_a_stop(prepared):
    """Losses of every step in fp64, in which another sample would show."""
    options = [*TINY, *BLEND, "train.steps=40", "train.eval_batches=0", "train.precision=fp64", "checkpoint.every=0"]
    prepared("train", *options, "run.name=one", "parallel.dp=1")
    expected = prepared.losses("one")
    for dp in (2, 4):
        prepared("train", *options, f"parallel.dp={dp}", "train.micro_batch_size=1", f"run.name=dp{dp}", timeout=300)
        assert prepared.losses(f"dp{dp}") == pytest.approx(expected, abs=1e-9)
    prepared("train", *options, "run.name=stopped", "parallel.dp=4", "train.stop_after=17", timeout=300)
    prepared("train", *options, "run.name=stopped", "parallel.dp=2", "train.micro_batch_size=4", "data.workers=3")
    assert prepared.losses("stopped") == pytest.approx(expected, abs=1e-9)
    records = prepared.metrics("stopped", "train")
    assert [record["consumed_samples"] for record in records] == list(range(8, 8 * 41, 8))


def test_the_recipe_for_ones_own_text_preprocesses_and_trains(shell):
    """Both commands of its head, as they are written there, but for a shorter run of a smaller model."""
    (shell.folder / "corpus").mkdir()
    text = "".join(f"goose {number} honks at pond {number % 7}\n" for number in range(2000))
    (shell.folder / "corpus" / "a.txt").write_text(text, encoding="utf-8")
    recipe = Path(__file__).parents[2] / "recipes" / "own-text.yaml"
    commands = [
        line.partition("gooseslo ")[2].split() for line in recipe.read_text().splitlines() if "gooseslo " in line
    ]
    (prepare, train), size = commands, ["model.config.n_layer=2", "model.config.n_embd=48", "model.config.n_head=4"]
    shell(*prepare)
    shell(*train, *size, "train.steps=4", "train.sequence_length=32", "run.name=run")
    records = shell.metrics("run")
    assert [record["kind"] for record in records].count("train") == 4
    assert (shell.folder / "runs/run/checkpoints/step-00000004/tokenizer.json").exists()
