"""DeepSpeed's ZeRO against one process of plain transformers: loss, norm, every gradient and every weight."""

import os
from dataclasses import replace

import pytest
import torch
from test_recompute import DROPOUT
from test_sharded_stages import case as sharded_case
from test_sharded_stages import evaluate_twice, spoil_one_step

from gooseslo.engine.build import build_step
from gooseslo.engine.plan import make_plan
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.testing.parity import assert_parity, run_layout, run_on_ranks, run_reference
from gooseslo.testing.ranks import run_ranks

CLOSE = {"loss": 1e-6, "tensors": 1e-5}
ALONE = {"pp": 1}
SHARE_ALL = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
"""DeepSpeed leaves weights as small as these whole on every rank."""
WITH_TP = {"pp": 1, "tp": 2}
PIPELINE = {"pp": 2}


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def case(stage, sizes, **changes):
    options: dict = {"precision": "fp32", **sizes, **changes}
    given = replace(sharded_case("1f1b", 1, {}, stage=stage, **options), zero_backend="deepspeed")
    return replace(given, zero_deepspeed=SHARE_ALL) if stage == 3 else given


CELLS = [
    ("gpt2", 0, ALONE),
    ("llama", 1, ALONE),
    ("gpt2", 2, ALONE),
    ("gpt2", 1, WITH_TP),
    ("llama", 2, WITH_TP),
    ("gpt2", 1, PIPELINE),
    ("gpt2", 3, ALONE),
    ("llama", 3, WITH_TP),
    *(
        pytest.param(*cell, marks=pytest.mark.slow)
        for cell in [
            ("llama", 0, ALONE),
            ("gpt2", 1, ALONE),
            ("llama", 2, ALONE),
            ("gpt2", 0, WITH_TP),
            ("llama", 0, WITH_TP),
            ("llama", 1, WITH_TP),
            ("gpt2", 2, WITH_TP),
            ("llama", 1, PIPELINE),
            ("llama", 3, ALONE),
            ("gpt2", 3, WITH_TP),
        ]
    ),
]


@pytest.mark.parametrize(("family", "stage", "sizes"), CELLS)
def test_fp32(family, stage, sizes):
    """With gradients of several micro-batches, and clipping that bites."""
    given = case(stage, sizes, family=family, clip_grad_norm=0.1)
    one, other = run_reference(given), run_on_ranks(given)
    assert min(one.norms) > 0.1
    assert other.norms == pytest.approx(one.norms, rel=1e-6)
    assert_parity(one, other, **CLOSE)


@pytest.mark.slow
def test_gpipe_with_sequence_parallel_fp32():
    """Norms and biases of tp ranks are summed too, beside the embeddings that the stages tie."""
    given = replace(case(1, {"pp": 2, "tp": 2}, sequence_parallel=True), schedule="gpipe")
    assert_parity(run_reference(given), run_on_ranks(given), **CLOSE)


@pytest.mark.parametrize(("stage", "sizes"), [slow(0, ALONE), (1, PIPELINE), slow(2, ALONE), (3, WITH_TP)])
def test_recomputation_and_dropout(stage, sizes):
    """Against the torch back end without recomputation: dropout draws by place."""
    given = case(stage, sizes)
    given = replace(given, fields={**given.fields, **DROPOUT["gpt2"]})
    plain = replace(given, zero_backend="torch", zero_stage=0, zero_deepspeed={})
    assert_parity(run_on_ranks(plain), run_on_ranks(replace(given, activation_checkpointing="full")), **CLOSE)


@pytest.mark.parametrize("stage", [slow(0), 1, slow(2), 3])
def test_bf16_autocast(stage):
    given = case(stage, ALONE, family="llama", bf16_mode="autocast", steps=1)
    given = replace(given, precision="bf16")
    plain = replace(given, zero_backend="torch", zero_stage=0, zero_deepspeed={})
    assert_parity(run_on_ranks(plain), run_on_ranks(given), **CLOSE)


@pytest.mark.parametrize("stage", [0, slow(1), 2, 3])
def test_a_gradient_that_is_not_finite_is_skipped_by_all_ranks(stage):
    for found in run_ranks(spoil_one_step, 2, case(stage, ALONE)):
        assert found == [(False, True), (True, False), (False, True)]


@pytest.mark.parametrize("stage", [slow(1), 2, 3])
def test_an_evaluation_sees_the_weights_as_they_are(stage):
    given = case(stage, ALONE)
    plain = run_ranks(evaluate_twice, 2, replace(given, zero_backend="torch", zero_stage=0, zero_deepspeed={}))[0]
    assert run_ranks(evaluate_twice, 2, given)[0] == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize(("stage", "sizes"), [slow(1, PIPELINE), slow(2, ALONE), (3, ALONE)])
def test_losses_of_adamw_fp32(stage, sizes):
    given = case(stage, sizes, family="llama", optimizer="adamw", steps=10, clip_grad_norm=0.3)
    assert run_on_ranks(given).losses == pytest.approx(run_reference(given).losses, rel=1e-5)


def compiled(rank, world_size, case, folder):
    """What DeepSpeed compiled for a run in a home without anything compiled."""
    os.environ["TORCH_EXTENSIONS_DIR"] = folder
    run_layout(case, rank)
    return sorted(os.listdir(folder))


def test_the_attention_alone_is_computed_again_with_weights_that_are_shared_out():
    """It is called past the hooks by which DeepSpeed gathers weights, within a block that has gathered them."""
    given = case(3, WITH_TP, activation_checkpointing="selective")
    assert_parity(run_reference(given), run_on_ranks(given), **CLOSE)


def test_nothing_is_compiled(tmp_path):
    """That takes half a minute and g++, and leaves a lock where it is killed."""
    assert run_ranks(compiled, 2, case(1, ALONE, steps=1), str(tmp_path)) == [[], []]


def whole_weights(rank, world_size, case):
    """How many weights DeepSpeed is going to hold whole between steps."""
    plan, job = make_plan(case.job(), num_devices=0), case.job()
    context = ParallelContext(plan.topology, rank)
    step = build_step(plan, context, job.train, zero=job.zero, seed=0, device=torch.device("cpu"))
    context.close()
    return sum(parameter.ds_persist for parameter in step.model.parameters().values())


def test_its_own_keys_reach_deepspeed():
    shared_out = case(3, ALONE)
    assert run_ranks(whole_weights, 2, shared_out) == [0, 0]
    assert min(run_ranks(whole_weights, 2, replace(shared_out, zero_deepspeed={}))) > 0
