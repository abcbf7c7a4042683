"""`data=instruction` and `data=classification` from the command line, and documents kept apart."""

import json

import pytest
import torch
from command_line import SMALL
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from gooseslo.cli import main

TINY = [*SMALL, "model.config.n_layer=2", "train.sequence_length=48", "lr_schedule=constant"]
MOODS = {"glad": "hooray splendid lovely", "cross": "bother nuisance horrid", "sleepy": "yawn drowsy dozing"}


def records(path, made):
    path.write_text("".join(json.dumps(record) + "\n" for record in made), encoding="utf-8")


@pytest.fixture
def texts(shell):
    made = [
        {"text": f"{words.split()[number % 3]} goose {number}, {words.split()[(number + 1) % 3]}", "label": mood}
        for number in range(60)
        for mood, words in MOODS.items()
    ]
    records(shell.folder / "train.jsonl", made)
    records(shell.folder / "valid.jsonl", made[:9])
    return shell


CLASSES = [
    "data=classification",
    "data.train=train.jsonl",
    "data.valid=valid.jsonl",
    "model.head=sequence-classification",
]


def test_a_classifier_learns_its_classes_and_loads_in_transformers(texts):
    options = [
        "model.config.num_labels=3",
        "train.steps=60",
        "optimizer.lr=3e-3",
        "train.eval_every=0",
        "run.name=moods",
    ]
    texts("train", *TINY, *CLASSES, *options, "parallel.tp=2", "parallel.pp=2")
    losses = texts.losses("moods")
    assert losses[0] > 0.9 and losses[-1] < 0.2
    evaluation = texts.metrics("moods", "eval")[-1]
    assert evaluation["samples"] == 9 and evaluation["accuracy"] == 1.0 and "perplexity" not in evaluation
    texts("merge-checkpoint", "input=runs/moods", "output=merged")
    folder = texts.folder / "merged"
    model, report = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()) and not (folder / "generation_config.json").exists()
    assert model.config.id2label == {0: "cross", 1: "glad", 2: "sleepy"}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for mood, words in MOODS.items():
        one, other, _ = words.split()
        ids = tokenizer(f"{other} goose 77, {one}", return_tensors="pt", add_special_tokens=False)
        with torch.no_grad():
            assert model.config.id2label[int(model(**ids).logits.argmax())] == mood
    error = texts("generate", "model.path=merged", "prompt=hooray", code=2)
    assert error.startswith("model.path=merged: a classifier, which writes no text")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            [*CLASSES, "model.config.num_labels=2"],
            "model.config.num_labels=2: the data has 3 classes: cross, glad, sleepy",
        ),
        ([*CLASSES[:3]], "data=classification: learns classes, and model.head=causal-lm has none"),
        (["model.head=sequence-classification"], "model.head=sequence-classification: learns classes, and data=stdlib"),
        (["model.head=sequence-clasification"], "model.head=sequence-clasification"),
        (["model.config.num_labels=3"], "model.config.num_labels=3: the architecture's config has no such field"),
        (["data=instruction", "data.train=train.jsonl"], "data.train: "),
        (["data=instruction"], "data.train: is required with data=instruction"),
        (["data=instruction", "data.train=gone.jsonl"], "data.train: "),
    ],
)
def test_what_cannot_be_learnt_is_one_paragraph(texts, arguments, words, monkeypatch, capsys):
    monkeypatch.chdir(texts.folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(texts.cache))
    assert main(["train", *TINY, *arguments, "run.name=run", "logging.progress=false"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(words) and len(error.splitlines()) <= 5
    assert not (texts.folder / "runs").exists()


def test_responses_are_learnt_and_written(shell):
    made = [{"prompt": f"say {word} {n}: ", "response": word} for n in range(40) for word in ("goose", "honk", "pond")]
    records(shell.folder / "train.jsonl", made)
    data = ["data=instruction", "data.train=train.jsonl", "train.eval_batches=0"]
    options = ["train.steps=80", "optimizer.lr=5e-3", "run.name=say"]
    shell("train", *TINY, *data, *options, "parallel.dp=2")
    assert shell.losses("say")[-1] < 0.3
    tokens = [record["tokens"] for record in shell.metrics("say", "train")]
    assert max(tokens) < 8 * 48, "only responses count"
    shell("merge-checkpoint", "input=runs/say", "output=merged")
    model = AutoModelForCausalLM.from_pretrained(shell.folder / "merged")
    tokenizer = AutoTokenizer.from_pretrained(shell.folder / "merged")
    prompt = tokenizer("say honk 7: ", return_tensors="pt", add_special_tokens=False)
    written = model.generate(**prompt, max_new_tokens=8, do_sample=False, pad_token_id=tokenizer.eos_token_id)
    answer = tokenizer.decode(written[0, prompt["input_ids"].shape[1] :])
    assert answer.startswith("honk<|endoftext|>")


def test_documents_are_kept_apart_at_any_layout(shell):
    (shell.folder / "a.jsonl").write_text("".join(json.dumps({"text": f"goose {n} honk"}) + "\n" for n in range(300)))
    data = ["data=text", "data.train=a.jsonl", "train.eval_batches=0", "train.steps=4", "data.reset_at_document=true"]
    shell("train", *TINY, *data, "run.name=one")
    shell("train", *TINY, *data, "parallel.tp=2", "parallel.pp=2", "parallel.sequence_parallel=true", "run.name=four")
    assert shell.losses("four") == pytest.approx(shell.losses("one"), rel=1e-5)
    shell("train", *TINY, *data[:-1], "run.name=mixed")
    assert shell.losses("mixed")[0] != pytest.approx(shell.losses("one")[0], rel=1e-4)
