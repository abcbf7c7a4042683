"""The demo learns: held-out loss against the unigram entropy of the held-out tokens. Minutes long."""

import json
import time

import numpy as np
import pytest


def unigram_entropy(shell):
    """Nats per token that a model of token frequencies alone would need on the held-out split."""
    folders = [path for path in (shell.cache / "gooseslo").iterdir() if "stdlib" in path.name]
    meta = {path: json.loads((path / "meta.json").read_text()) for path in folders}
    [folder] = [path for path in folders if meta[path]["vocab_size"] == 8192]
    tokens = np.fromfile(folder / "valid.bin", dtype=meta[folder]["dtype"])
    share = np.bincount(tokens) / len(tokens)
    share = share[share > 0]
    return float(-(share * np.log(share)).sum())


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_held_out_loss_is_below_the_unigram_entropy(shell):
    """After 300 steps, with the learning rate still high, and by half a nat after 1,000."""
    # Four ranks on two cores are never idle: what a split backward pass costs would only be lost.
    steps = ["train.steps=1000", "train.eval_every=300", "checkpoint.every=0", "parallel.schedule=1f1b"]
    shell("train", "recipe=demo", *steps, "run.name=demo", timeout=2300)
    losses = {record["step"]: record["loss"] for record in shell.metrics("demo", "eval")}
    entropy = unigram_entropy(shell)
    assert 4 < entropy < 9
    for step, margin in ((300, 0.0), (1000, 0.5)):
        assert losses[step] < entropy - margin, f"step {step}: {losses[step]:.3f}, unigram entropy {entropy:.3f}"


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_first_step_of_gpt2_comes_within_a_minute_with_nothing_cached(shell, tmp_path):
    shell.cache = tmp_path / "cold"
    began = time.monotonic()
    process = shell.start("train", "model=gpt2", "parallel.tp=2", "parallel.pp=2", "run.name=gpt2")
    try:
        metrics = shell.folder / "runs" / "gpt2" / "metrics.jsonl"
        while not (metrics.exists() and metrics.read_text().endswith("\n")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() - began < 60
            time.sleep(0.2)
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 143
