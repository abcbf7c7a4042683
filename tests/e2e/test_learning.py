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
@pytest.mark.parametrize(("steps", "margin"), [(300, 0.0), (1000, 0.5)])
def test_held_out_loss_is_below_the_unigram_entropy(shell, steps, margin):
    at_the_end_alone = ["train.eval_every=0", "checkpoint.every=0"]
    shell("train", "recipe=demo", f"train.steps={steps}", "run.name=demo", *at_the_end_alone, timeout=2300)
    loss = shell.metrics("demo", "eval")[-1]["loss"]
    entropy = unigram_entropy(shell)
    assert 4 < entropy < 9
    assert loss < entropy - margin, f"held-out loss {loss:.3f}, unigram entropy {entropy:.3f}"


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
