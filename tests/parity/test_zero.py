"""ZeRO's stage 1 against one process of plain transformers, under every schedule, sharing and precision."""

from dataclasses import replace

import pytest
import torch
from test_schedules import SCHEDULES, case

from gooseslo.engine.build import build_step
from gooseslo.engine.plan import make_plan
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import OPTIMIZERS, Case, assert_parity, run_on_ranks, run_reference
from gooseslo.testing.ranks import run_ranks

FAMILIES = ["gpt2", pytest.param("llama", marks=pytest.mark.slow)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("schedule", "virtual_stages"), SCHEDULES)
def test_every_schedule_fp64(schedule, virtual_stages, family):
    options = {"dp": 2, "micro_batch_size": 1, "zero_stage": 1, "optimizer": "adamw", "clip_grad_norm": 0.1}
    given = case(schedule, virtual_stages, family=family, **options)
    assert_parity(run_reference(given), run_on_ranks(given), loss=1e-12, tensors=1e-9)


SHARINGS = [
    {"dp": 2},
    {"dp": 3, "samples": 12},
    {"dp": 4},
    {"dp": 4, "zero_shard_size": 2},
    {"dp": 2, "zero_shard_size": 1},
    {"dp": 2, "zero_offload": True},
    {"dp": 1, "zero_offload": True},
    {"dp": 2, "tp": 2, "zero_offload": True},
    {"dp": 2, "tp": 2, "sequence_parallel": True},
    {"dp": 2, "tp": 2, "ignore_some_labels": True},
    {"dp": 2, "activation_checkpointing": "full"},
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_every_sharing_fp64(sharing, family):
    options = {"fields": tiny_fields(family, vocab_size=131), "samples": 8, "micro_batch_size": 1}
    given = Case(architecture=family, zero_stage=1, optimizer="adamw", clip_grad_norm=0.1, **{**options, **sharing})
    assert_parity(run_reference(given), run_on_ranks(given), loss=1e-12, tensors=1e-9)


@pytest.mark.parametrize("mode", ["master", "autocast"])
@pytest.mark.parametrize("sharing", [{"dp": 2}, {"dp": 2, "pp": 2}, {"dp": 2, "zero_offload": True}])
def test_bf16_is_that_of_stage_0(sharing, mode):
    """The same sums in fp32, of two ranks: not a bit may differ, whether or not a master is shared out."""
    fields = tiny_fields("gpt2")
    given = Case(fields=fields, precision="bf16", bf16_mode=mode, optimizer="sgd", samples=8, zero_stage=1, **sharing)
    alone = replace(given, zero_stage=0, zero_offload=False)
    assert_parity(run_on_ranks(alone), run_on_ranks(given), loss=0.0, tensors=0.0)


def test_dropout_is_that_of_stage_0():
    fields = tiny_fields("gpt2", resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1)
    given = Case(fields=fields, dp=2, pp=2, samples=8, zero_stage=1)
    assert_parity(run_on_ranks(replace(given, zero_stage=0)), run_on_ranks(given), loss=1e-12, tensors=1e-9)


def bytes_after_a_step(rank, world_size, case):
    """Of the optimizer's state with masters, of gradients that are stepped, and of weights."""
    plan = make_plan(case.job(), num_devices=0)
    context = ParallelContext(plan.topology, rank)
    step = build_step(plan, context, case.job().train, zero=case.job().zero, seed=0, device=torch.device("cpu"))
    replicas = step.data_parallel
    optimizer = OPTIMIZERS["adamw"]([part.parameter for part in replicas.stepped])
    share = case.samples // case.dp
    ids, labels = (tensor[rank * share : (rank + 1) * share] for tensor in case.batch(0))
    step(ids, labels, step=0, update=optimizer.step)
    kept = [t for state in optimizer.state.values() for t in state.values() if t.dim()]
    kept += [part.parameter for part in replicas.stepped] if replicas.are_masters else []
    context.close()
    return sum(t.numel() * t.element_size() for t in kept)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_four_ranks_share_masters_and_moments(precision):
    given = Case(fields=tiny_fields("gpt2", n_embd=64), precision=precision, dp=4, samples=8, zero_stage=1)
    whole = run_ranks(bytes_after_a_step, 4, replace(given, zero_stage=0))
    shares = run_ranks(bytes_after_a_step, 4, given)
    assert max(shares) <= 0.27 * whole[0]


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "virtual_stages"), SCHEDULES)
def test_every_schedule_fp32(schedule, virtual_stages):
    options = {"precision": "fp32", "optimizer": "adamw", "steps": 20, "dp": 2, "zero_stage": 1}
    given = case(schedule, virtual_stages, micro_batch_size=1, **options)
    expected, actual = run_reference(given), run_on_ranks(given)
    assert actual.losses == pytest.approx(expected.losses, rel=1e-5)
