"""Every layout against one process of plain transformers: loss, each gradient, each updated weight."""

from dataclasses import replace

import pytest

from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case, assert_parity, run_on_ranks, run_reference

LAYOUTS = [
    (1, 1, 1),
    (2, 1, 1),
    (1, 2, 1),
    (1, 1, 2),
    (2, 2, 1),
    (2, 1, 2),
    (1, 2, 2),
    (1, 4, 1),
    (1, 3, 1),
]
SPECIAL = [
    # family, tp, pp, dp, fields
    ("gpt2", 4, 1, 1, {}),
    ("gpt2", 3, 1, 1, {"n_head": 3}),
    ("gpt2", 2, 1, 1, {"vocab_size": 97}),
    ("gpt2", 4, 1, 1, {"vocab_size": 97}),
    ("gpt2", 2, 2, 1, {"vocab_size": 97}),
    ("gpt2", 2, 2, 1, {"tie_word_embeddings": False}),
    # The tiny Llama has 4 heads on 2 key-value heads and its own head; tp=4 shares each key-value head between two.
    ("llama", 4, 1, 1, {}),
    ("llama", 4, 1, 1, {"attention_bias": True, "mlp_bias": True}),
    ("llama", 3, 1, 1, {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 36}),
    ("llama", 4, 1, 1, {"num_key_value_heads": 1}),
    ("llama", 2, 2, 1, {"num_key_value_heads": 1, "vocab_size": 97}),
    ("llama", 1, 2, 1, {"tie_word_embeddings": True}),
    ("llama", 2, 2, 1, {"tie_word_embeddings": True}),
    ("llama", 2, 1, 1, {"head_dim": 8, "pad_token_id": 3}),
    ("llama", 2, 2, 1, {"tie_word_embeddings": True, "pad_token_id": 50}),
]
GRID = [(family, *layout, {}) for family in ("gpt2", "llama") for layout in LAYOUTS] + SPECIAL
SEQUENCE_PARALLEL = [
    *((family, *layout, {}) for family in ("gpt2", "llama") for layout in LAYOUTS if layout[0] > 1),
    ("gpt2", 4, 1, 1, {}),
    ("gpt2", 3, 1, 1, {"n_head": 3}),
    ("gpt2", 2, 2, 1, {"tie_word_embeddings": False}),
    ("llama", 4, 1, 1, {"attention_bias": True, "mlp_bias": True}),
    ("llama", 3, 1, 1, {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 36}),
    ("llama", 2, 2, 1, {"tie_word_embeddings": True}),
]


def fp32_cases(grid, fast):
    """fp64 proves a layout; of the same in fp32 a few run always, the others with the slow tests."""
    return [cell if cell[:4] in fast else pytest.param(*cell, marks=pytest.mark.slow) for cell in grid]


FP32_FAST = [("gpt2", 2, 1, 1), ("gpt2", 1, 2, 2), ("gpt2", 2, 2, 1), ("llama", 4, 1, 1), ("llama", 2, 2, 1)]


def case(tp, pp, dp, fields, *, family="gpt2", **changes):
    # 4 micro-batches on each data-parallel rank; a length that 2, 3 and 4 divide.
    fields = tiny_fields(family, **fields)
    sizes = {"samples": 8 * dp, "sequence_length": 12}
    return Case(architecture=family, fields=fields, tp=tp, pp=pp, dp=dp, **sizes, **changes)


def fp32_steps(fields):
    """A step of rate 0.5 on this model's biases: after it plain fp32 is 1.2e-5 from fp64 in one process already."""
    return 1 if "attention_bias" in fields else 3


@pytest.mark.parametrize(("family", "tp", "pp", "dp", "fields"), GRID)
def test_fp64(family, tp, pp, dp, fields):
    proof = case(tp, pp, dp, fields, family=family)
    assert_parity(run_reference(proof), run_on_ranks(proof), loss=1e-12, tensors=1e-9)


@pytest.mark.parametrize(("family", "tp", "pp", "dp", "fields"), fp32_cases(GRID, FP32_FAST))
def test_fp32(family, tp, pp, dp, fields):
    proof = case(tp, pp, dp, fields, family=family, precision="fp32", steps=fp32_steps(fields))
    assert_parity(run_reference(proof), run_on_ranks(proof), loss=1e-6, tensors=1e-5)


@pytest.mark.parametrize(("family", "tp", "pp", "dp", "fields"), SEQUENCE_PARALLEL)
def test_sequence_parallel_fp64(family, tp, pp, dp, fields):
    proof = case(tp, pp, dp, fields, family=family, sequence_parallel=True)
    assert_parity(run_reference(proof), run_on_ranks(proof), loss=1e-12, tensors=1e-9)


@pytest.mark.parametrize(("family", "tp", "pp", "dp", "fields"), fp32_cases(SEQUENCE_PARALLEL, [("llama", 2, 2, 1)]))
def test_sequence_parallel_fp32(family, tp, pp, dp, fields):
    steps = fp32_steps(fields)
    proof = case(tp, pp, dp, fields, family=family, precision="fp32", steps=steps, sequence_parallel=True)
    assert_parity(run_reference(proof), run_on_ranks(proof), loss=1e-6, tensors=1e-5)


@pytest.mark.parametrize(
    ("family", "tp", "pp", "dp", "sequence_parallel"),
    [
        ("gpt2", 2, 1, 1, False),
        ("gpt2", 1, 2, 1, False),
        ("gpt2", 1, 1, 2, False),
        ("gpt2", 2, 2, 1, True),
        pytest.param("llama", 4, 1, 1, False, marks=pytest.mark.slow),
        pytest.param("llama", 2, 2, 1, True, marks=pytest.mark.slow),
    ],
)
def test_twenty_adamw_losses_fp32(family, tp, pp, dp, sequence_parallel):
    changes = {"precision": "fp32", "optimizer": "adamw", "steps": 20, "clip_grad_norm": 1.0, "fixed_batch": True}
    proof = case(tp, pp, dp, {}, family=family, sequence_parallel=sequence_parallel, **changes)
    one, other = run_reference(proof), run_on_ranks(proof)
    assert other.losses == pytest.approx(one.losses, rel=1e-5)
    # All that a batch of random tokens can teach is itself.
    for losses in (one.losses, other.losses):
        assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.3


@pytest.mark.parametrize(
    ("family", "tp", "pp", "dp", "sequence_parallel"),
    [
        ("gpt2", 2, 1, 1, True),
        ("gpt2", 1, 2, 1, False),
        ("gpt2", 2, 2, 1, False),
        ("gpt2", 1, 2, 2, False),
        ("llama", 4, 1, 1, False),
        ("llama", 4, 1, 1, True),
    ],
)
def test_clipping_uses_the_norm_of_the_whole_model(family, tp, pp, dp, sequence_parallel):
    proof = case(tp, pp, dp, {}, family=family, sequence_parallel=sequence_parallel, clip_grad_norm=0.1)
    one, other = run_reference(proof), run_on_ranks(proof)
    assert min(one.norms) > 0.1
    assert other.norms == pytest.approx(one.norms, rel=1e-12)
    assert_parity(one, other, loss=1e-12, tensors=1e-9)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_schedules_and_given_partitions(schedule):
    proof = case(1, 3, 1, {}, schedule=schedule, partition=[1, 2, 1])
    assert_parity(run_reference(proof), run_on_ranks(proof), loss=1e-12, tensors=1e-9)


@pytest.mark.parametrize(("tp", "pp", "dp"), [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 1, 2), (1, 2, 2)])
def test_loss_is_the_mean_over_predicted_tokens_not_of_means(tp, pp, dp):
    """Micro-batches with fewer labels, one without any: each token weighs the same."""
    proof = case(tp, pp, dp, {}, ignore_some_labels=True)
    assert_parity(run_reference(proof), run_on_ranks(proof), loss=1e-12, tensors=1e-9)


def test_fewer_micro_batches_than_stages_runs_under_gpipe():
    proof = replace(case(1, 4, 1, {}, schedule="gpipe"), samples=4)
    assert_parity(run_reference(proof), run_on_ranks(proof), loss=1e-12, tensors=1e-9)
