"""Dropout: which masks agree between ranks, which differ, and that no layout changes a replicated one."""

from unittest import mock

import pytest
import torch

from gooseslo.engine.build import build_step
from gooseslo.engine.plan import make_plan
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case, assert_parity, run_layout
from gooseslo.testing.ranks import run_ranks


def dropout_case(rate, **changes):
    fields = tiny_fields("gpt2", resid_pdrop=rate, embd_pdrop=rate, attn_pdrop=rate)
    return Case(fields=fields, samples=8, **changes)


def train(rank, world_size, case):
    return run_layout(case, rank)


@pytest.mark.parametrize("layout", [{"pp": 2}, {"pp": 4}, {"dp": 2}, {"pp": 2, "dp": 2}])
def test_dropout_is_equal_over_pp_and_dp(layout):
    one = run_ranks(train, 1, dropout_case(0.1, tp=1))[0]
    case = dropout_case(0.1, schedule="gpipe", **layout)
    other = run_ranks(train, case.world_size, case)[0]
    assert_parity(one, other, loss=1e-12, tensors=1e-9)


def test_dropout_that_is_no_module_has_its_streams_too():
    """Llama drops attention weights by a number of its config."""
    sizes = {"architecture": "llama", "fields": tiny_fields("llama", attention_dropout=0.1), "samples": 8}
    one = run_ranks(train, 1, Case(**sizes))[0]
    other = run_ranks(train, 2, Case(**sizes, pp=2, schedule="gpipe"))[0]
    assert_parity(one, other, loss=1e-12, tensors=1e-9)


def test_dropout_drops():
    """Else the test above would pass with one mask for all."""
    case = dropout_case(0.1, steps=1)
    losses = [run_ranks(train, 1, c)[0].losses[0] for c in (case, dropout_case(0.0, steps=1))]
    assert losses[0] != losses[1]


@pytest.mark.parametrize(
    "layout",
    [
        {"tp": 2},
        {"tp": 2, "dp": 2},
        {"tp": 2, "pp": 2},
        {"tp": 2, "sequence_parallel": True},
        {"tp": 2, "pp": 2, "sequence_parallel": True},
    ],
)
def test_replicated_tensors_stay_bit_equal_over_tp(layout):
    """`run_layout` gathers every rank's copy after each step and refuses copies that differ in one bit."""
    case = dropout_case(0.1, steps=5, precision="fp32", optimizer="adamw", **layout)
    run_ranks(train, case.world_size, case)


def masks(rank, world_size):
    """What layer 0 drops of its output and of this rank's attention weights, and the hidden state after the layer."""
    case = dropout_case(0.5, tp=2, dp=2, precision="fp32")
    plan = make_plan(case.job(), num_devices=0)
    plan.config._attn_implementation = "eager"  # the only one whose attention weights can be seen
    context = ParallelContext(plan.topology, rank)
    step = build_step(plan, context, case.job().train, seed=0, device=torch.device("cpu"))
    seen = {}
    block = step.model.module.model.transformer.h[0]
    block.attn.resid_dropout.register_forward_hook(
        lambda m, args, out: seen.update(residual=(out == 0) & (args[0] != 0))
    )
    block.register_forward_hook(lambda m, args, out: seen.update(hidden=out.detach().clone()))
    drop = torch.nn.functional.dropout

    def watched(weights, *args, **options):
        dropped = drop(weights, *args, **options)
        if weights.dim() == 4:  # [samples, heads, queries, keys]
            seen.setdefault("attention", (dropped == 0) & (weights != 0))
        return dropped

    step.streams.micro_batch = context.at.dp * plan.num_micro_batches
    step.model.module.train()
    with mock.patch.object(torch.nn.functional, "dropout", watched):
        step.model.module(torch.arange(16)[None].repeat(2, 1))
    context.close()
    return (context.at.tp, context.at.dp), seen


def test_which_masks_agree():
    found = dict(run_ranks(masks, 4))
    for dp in (0, 1):
        one, other = found[0, dp], found[1, dp]
        assert one["residual"].any()
        assert torch.equal(one["residual"], other["residual"])
        assert torch.equal(one["hidden"], other["hidden"])
        assert one["attention"].shape == (2, 2, 16, 16)  # 2 of 4 heads
        assert one["attention"].any() and other["attention"].any()
        assert not torch.equal(one["attention"], other["attention"])
    for tp in (0, 1):
        assert not torch.equal(found[tp, 0]["residual"], found[tp, 1]["residual"])
        assert not torch.equal(found[tp, 0]["attention"], found[tp, 1]["attention"])
