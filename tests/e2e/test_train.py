"""A run from the command line: what it leaves behind, how it goes on, and that layouts agree."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TRAIN_FIELDS = {
    "kind", "step", "loss", "lr", "grad_norm", "tokens", "consumed_samples", "consumed_tokens", "step_seconds",
    "data_wait_seconds", "tokens_per_second", "flops_per_second", "mfu", "memory_bytes", "skipped",
    "stage_seconds",
}  # fmt: skip
EVAL_FIELDS = {"kind", "step", "split", "loss", "perplexity", "samples"}


def test_the_run_folder_holds_what_it_promises(trained):
    run = trained.folder / "runs" / "run"
    names = {path.name for path in run.iterdir() if not path.name.startswith(".")}
    assert names == {
        "config.yaml",
        "overrides.txt",
        "plan.txt",
        "environment.json",
        "metrics.jsonl",
        "logs",
        "checkpoints",
    }
    logs = {path.name for path in (run / "logs").iterdir()}
    assert {f"rank-{rank}.log" for rank in range(4)} <= logs
    steps = run / "checkpoints"
    assert {path.name for path in steps.iterdir()} == {"latest", "step-00000003", "step-00000006"}
    assert (steps / "latest").read_text().strip() == "step-00000006"
    files = {path.name for path in (steps / "step-00000006").iterdir()}
    expected = {"manifest.json", "config.json", "generation_config.json", "state.json", "tokenizer.json"}
    for tp in (0, 1):
        for pp in (0, 1):
            expected |= {f"model_tp={tp}_pp={pp}.safetensors", f"optimizer_tp={tp}_pp={pp}_dp=0.safetensors"}
    assert expected <= files
    assert "parallel.tp=2" in (run / "overrides.txt").read_text().splitlines()
    assert "tp=2 pp=2 dp=1" in (run / "plan.txt").read_text()
    assert json.loads((run / "environment.json").read_text())["versions"]["torch"]


def test_metrics_have_a_line_for_each_step_and_evaluation(trained):
    train, evaluations = trained.metrics("run", "train"), trained.metrics("run", "eval")
    assert [record["step"] for record in train] == [1, 2, 3, 4, 5, 6]
    assert all(set(record) == TRAIN_FIELDS for record in train)
    assert [record["step"] for record in evaluations] == [3, 6]
    assert all(set(record) == EVAL_FIELDS and record["split"] == "valid" for record in evaluations)
    assert all(record["tokens"] == 8 * 32 for record in train)
    assert all(len(record["stage_seconds"]) == 2 for record in train)
    assert all(0 < seconds < record["step_seconds"] for record in train for seconds in record["stage_seconds"])
    assert [record["consumed_samples"] for record in train] == [8, 16, 24, 32, 40, 48]
    assert train[-1]["consumed_tokens"] == 6 * 8 * 32
    assert train[0]["lr"] == 0 and train[1]["lr"] == pytest.approx(3e-5)
    assert train[-1]["loss"] < train[0]["loss"]
    assert all(record["mfu"] is None and not record["skipped"] for record in train)


def test_the_loss_on_screen_is_that_of_the_file(trained):
    """The mean over micro-batches, once a step, though the last stage alone computes it."""
    for record in trained.metrics("run", "train"):
        assert trained.output.count(f"step {record['step']}/6  loss {record['loss']:.4f}") == 1


def test_every_layout_gives_the_losses_of_one_process(trained, shell, small):
    sizes = ["train.steps=6", "train.eval_every=3", "checkpoint.final=false", "train.micro_batch_size=1"]
    shell("train", *small, *sizes, "run.name=one")
    shell("train", *small, *sizes, "run.name=mesh", "parallel.dp=2", "parallel.pp=2")
    for run in ("one", "mesh"):
        records = shell.metrics(run)
        assert len(records) == 8
        for record, expected in zip(records, trained.metrics("run"), strict=True):
            assert record["loss"] == pytest.approx(expected["loss"], rel=1e-5)


def test_a_stopped_run_goes_on_exactly(trained, shell, small):
    sizes = ["train.steps=6", "train.eval_every=3", "parallel.tp=2", "parallel.pp=2", "run.name=run"]
    shell("train", *small, *sizes, "train.stop_after=2")
    assert shell.losses("run") == trained.losses("run")[:2]
    shell("train", *small, *sizes)
    assert shell.losses("run") == trained.losses("run")
    assert "nothing to do" in shell("train", *small, *sizes)


def test_another_layout_goes_on_from_the_same_weights_and_moments(trained, shell, small):
    shell("train", *small, "train.steps=6", "run.name=run", "parallel.tp=2", "parallel.pp=2", "train.stop_after=3")
    shell("train", *small, "train.steps=6", "run.name=run", "parallel.dp=2", "train.micro_batch_size=4")
    assert shell.losses("run")[:3] == trained.losses("run")[:3]
    assert shell.losses("run")[3:] == pytest.approx(trained.losses("run")[3:], rel=1e-5)


@pytest.mark.slow
def test_dropout_is_the_same_after_a_resume(shell, small):
    dropout = [f"model.config.{kind}_pdrop=0.2" for kind in ("resid", "embd", "attn")]
    sizes = ["train.steps=4", "parallel.pp=2", *dropout]
    shell("train", *small, *sizes, "run.name=whole")
    shell("train", *small, *sizes, "run.name=parts", "train.stop_after=2")
    shell("train", *small, *sizes, "run.name=parts")
    assert shell.losses("parts") == shell.losses("whole")


def test_a_continued_run_refuses_another_batch(trained, small):
    before = trained.metrics("run")
    error = trained("train", *small, "run.name=run", "train.steps=6", "train.global_batch_size=4", code=2)
    assert error.startswith("train.global_batch_size=4: the run has 8")
    assert trained.metrics("run") == before


def test_the_merged_folder_is_a_plain_transformers_model(trained):
    folder = trained.folder / "merged"
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["GPT2LMHeadModel"] and config["model_type"] == "gpt2"
    assert not any("gooseslo" in key or "parallel" in key for key in config)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert config["eos_token_id"] == tokenizer.eos_token_id
    text = tokenizer("import os\n", return_tensors="pt")
    out = model.generate(**text, max_new_tokens=4, do_sample=False)
    assert out.shape[1] == text["input_ids"].shape[1] + 4


def test_the_merged_weights_have_the_loss_of_the_run(trained):
    """The evaluation at the last step, done again by transformers on the same held-out samples."""
    model = AutoModelForCausalLM.from_pretrained(trained.folder / "merged")
    [prepared] = [path for path in (trained.cache / "gooseslo").iterdir() if "stdlib" in path.name]
    tokens = torch.frombuffer(bytearray((prepared / "valid.bin").read_bytes()), dtype=torch.uint16).long()
    samples = torch.stack([tokens[i * 32 : i * 32 + 33] for i in range(16)])
    with torch.no_grad():
        logits = model(samples[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten())
    assert trained.metrics("run", "eval")[-1]["loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_generate_writes_the_prompt_and_goes_on(trained):
    text = trained("generate", "model.path=merged", "prompt=def f(x): # {a, b}", "max_new_tokens=5")
    assert text.startswith("def f(x): # {a, b}")
    assert text == trained("generate", "model.path=merged", "max_new_tokens=5", stdin="def f(x): # {a, b}")
    untrained = ["generate", "model.path=merged", "model.init=random", "max_new_tokens=5", "prompt=import"]
    assert trained(*untrained, "seed=1") != trained(*untrained, "seed=2")


def test_two_runs_without_a_name_get_two_folders(shell, small):
    sizes = [*small, "train.steps=1", "checkpoint.final=false", "parallel.pp=2"]
    started = [shell.start("train", *sizes) for _ in range(2)]
    for process in started:
        _, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
    assert len(list((shell.folder / "runs").iterdir())) == 2
    assert len(list((shell.folder / "runs").glob("*/config.yaml"))) == 2


def test_text_files_of_the_user(shell, small):
    (shell.folder / "my text.txt").write_text("goose honk pond egg reed wing nest\n" * 3000, encoding="utf-8")
    (shell.folder / "held=out.jsonl").write_text('{"text": "goose honk pond egg"}\n' * 400, encoding="utf-8")
    files = ["data=text", "data.train=my text.txt", "data.valid=held=out.jsonl", "data.vocab_size=270"]
    shell("train", *[key for key in small if "vocab" not in key], *files, "train.steps=3", "run.name=mine")
    assert [record["kind"] for record in shell.metrics("mine")] == ["train"] * 3 + ["eval"]


def test_synthetic_data_needs_no_tokenizer(shell, small):
    sizes = [key for key in small if "vocab" not in key]
    shell("train", *sizes, "data=synthetic", "optimizer=sgd", "lr_schedule=constant", "train.steps=2", "run.name=s")
    assert len(shell.losses("s")) == 2
