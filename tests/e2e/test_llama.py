"""The second family from the command line: shared key-value heads over a resume at another layout, and a merge."""

import json

import pytest
from transformers import AutoModelForCausalLM

SMALL_LLAMA = [
    "model=llama-tiny",
    "model.config.num_hidden_layers=2",
    "model.config.hidden_size=48",
    "model.config.intermediate_size=96",
    "model.config.num_attention_heads=4",
    "model.config.num_key_value_heads=2",
    "model.config.tie_word_embeddings=false",
    "data.vocab_size=300",
    "train.sequence_length=32",
    "train.eval_batches=2",
    "train.steps=4",
]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_key_value_heads_are_saved_once_and_load_in_any_layout(shell):
    """tp=4 shares each of the 2 key-value heads between two ranks, on sequence shards; tp=2 gives each its own."""
    shell("train", *SMALL_LLAMA, "run.name=one")
    four = ["parallel.tp=4", "parallel.sequence_parallel=true"]
    shell("train", *SMALL_LLAMA, "run.name=mesh", *four, "train.stop_after=2")
    step = shell.folder / "runs" / "mesh" / "checkpoints" / "step-00000002"
    entry = json.loads((step / "manifest.json").read_text())["tensors"]["model.layers.0.self_attn.k_proj.weight"]
    assert [piece["file"] for piece in entry["pieces"]] == [f"model_tp={tp}_pp=0.safetensors" for tp in (0, 2)]
    shell("train", *SMALL_LLAMA, "run.name=mesh", "parallel.tp=2", "parallel.pp=2")
    assert shell.losses("mesh") == pytest.approx(shell.losses("one"), rel=1e-5)

    shell("merge-checkpoint", "input=runs/mesh", "output=merged")
    model, report = AutoModelForCausalLM.from_pretrained(shell.folder / "merged", output_loading_info=True)
    assert not any(report.values())
    assert type(model).__name__ == "LlamaForCausalLM" and model.config.num_key_value_heads == 2
    assert shell("generate", "model.path=merged", "prompt=import", "max_new_tokens=3").startswith("import")


def test_a_plan_says_that_the_sequence_is_split(shell):
    out = shell("train", *SMALL_LLAMA, "parallel.tp=2", "parallel.sequence_parallel=true", "train.stop_after=1")
    assert "tp=2 pp=1 dp=1: 2 workers, sequence parallel" in out
