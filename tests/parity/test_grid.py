"""Every layout against one process of plain transformers: loss, each gradient, each updated weight."""

from dataclasses import replace

import pytest

from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case, assert_parity, run_layout, run_reference
from gooseslo.testing.ranks import run_ranks

THREE_HEADS = {"n_head": 3}
GRID = [
    (1, 1, 1, {}),
    (2, 1, 1, {}),
    (1, 2, 1, {}),
    (1, 1, 2, {}),
    (2, 2, 1, {}),
    (2, 1, 2, {}),
    (1, 2, 2, {}),
    (4, 1, 1, {}),
    (1, 4, 1, {}),
    (1, 3, 1, {}),
    (3, 1, 1, THREE_HEADS),
    (2, 1, 1, {"vocab_size": 97}),
    (4, 1, 1, {"vocab_size": 97}),
    (2, 2, 1, {"vocab_size": 97}),
    (2, 2, 1, {"tie_word_embeddings": False}),
]


def case(tp, pp, dp, fields, **changes):
    # 4 micro-batches on each data-parallel rank.
    return Case(fields=tiny_fields("gpt2", **fields), tp=tp, pp=pp, dp=dp, samples=8 * dp, **changes)


def on_ranks(rank, world_size, case):
    return run_layout(case, rank)


def layout(case):
    return run_ranks(on_ranks, case.world_size, case)[0]


@pytest.mark.parametrize(("tp", "pp", "dp", "fields"), GRID)
def test_fp64(tp, pp, dp, fields):
    proof = case(tp, pp, dp, fields)
    assert_parity(run_reference(proof), layout(proof), loss=1e-12, tensors=1e-9)


@pytest.mark.parametrize(("tp", "pp", "dp", "fields"), GRID)
def test_fp32(tp, pp, dp, fields):
    proof = case(tp, pp, dp, fields, precision="fp32")
    assert_parity(run_reference(proof), layout(proof), loss=1e-6, tensors=1e-5)


@pytest.mark.parametrize(("tp", "pp", "dp"), [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1)])
def test_twenty_adamw_losses_fp32(tp, pp, dp):
    proof = case(tp, pp, dp, {}, precision="fp32", optimizer="adamw", steps=20, clip_grad_norm=1.0, fixed_batch=True)
    one, other = run_reference(proof), layout(proof)
    assert other.losses == pytest.approx(one.losses, rel=1e-5)
    # All that a batch of random tokens can teach is itself.
    for losses in (one.losses, other.losses):
        assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.3


@pytest.mark.parametrize(("tp", "pp", "dp"), [(2, 1, 1), (1, 2, 1), (2, 2, 1), (1, 2, 2)])
def test_clipping_uses_the_norm_of_the_whole_model(tp, pp, dp):
    proof = case(tp, pp, dp, {}, clip_grad_norm=0.1)
    one, other = run_reference(proof), layout(proof)
    assert min(one.norms) > 0.1
    assert other.norms == pytest.approx(one.norms, rel=1e-12)
    assert_parity(one, other, loss=1e-12, tensors=1e-9)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_schedules_and_given_partitions(schedule):
    proof = case(1, 3, 1, {}, schedule=schedule, partition=[1, 2, 1])
    assert_parity(run_reference(proof), layout(proof), loss=1e-12, tensors=1e-9)


@pytest.mark.parametrize(("tp", "pp", "dp"), [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 1, 2), (1, 2, 2)])
def test_loss_is_the_mean_over_predicted_tokens_not_of_means(tp, pp, dp):
    """Micro-batches with fewer labels, one without any: each token weighs the same."""
    proof = case(tp, pp, dp, {}, ignore_some_labels=True)
    assert_parity(run_reference(proof), layout(proof), loss=1e-12, tensors=1e-9)


def test_fewer_micro_batches_than_stages_runs_under_gpipe():
    proof = replace(case(1, 4, 1, {}, schedule="gpipe"), samples=4)
    assert_parity(run_reference(proof), layout(proof), loss=1e-12, tensors=1e-9)
