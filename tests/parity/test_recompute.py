"""Activation checkpointing changes no loss, gradient or weight, under any schedule; and something is computed again."""

from dataclasses import replace

import pytest
import torch
from test_schedules import SCHEDULES, case

from gooseslo.testing.parity import assert_parity, run_layout, run_on_ranks, run_reference
from gooseslo.testing.ranks import run_ranks

DROPOUT = {"gpt2": {"attn_pdrop": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1}, "llama": {"attention_dropout": 0.1}}


@pytest.mark.parametrize("parts", ["full", "selective", pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("schedule", "virtual_stages"), [("1f1b", 1), ("interleaved_1f1b", 2), ("zbv", 2)])
def test_it_changes_nothing(schedule, virtual_stages, parts):
    given = case(schedule, virtual_stages, tp=2, micro_batch_size=1, activation_checkpointing=parts)
    assert_parity(run_reference(given), run_on_ranks(given), loss=1e-12, tensors=1e-9)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_dropout_of_the_attention_alone_draws_the_same_again(family):
    given = case("1f1b", 1, family=family, micro_batch_size=1)
    given = replace(given, fields={**given.fields, **DROPOUT[family]})
    again = replace(given, activation_checkpointing="selective")
    assert_parity(run_on_ranks(given), run_on_ranks(again), loss=1e-12, tensors=1e-9)


@pytest.mark.parametrize("family", ["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("schedule", "virtual_stages"), SCHEDULES)
def test_dropout_draws_the_same_again(schedule, virtual_stages, family):
    """Against the same layout without it: one process of plain transformers draws otherwise."""
    given = case(schedule, virtual_stages, family=family, micro_batch_size=1)
    given = replace(given, fields={**given.fields, **DROPOUT[family]})
    again = replace(given, activation_checkpointing="full")
    assert_parity(run_on_ranks(given), run_on_ranks(again), loss=1e-12, tensors=1e-9)


def forwards(rank, world_size, case):
    """Calls of each block's first norm in one step."""
    counts = {}
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, output: counts.update(
            {id(module): counts.get(id(module), 0) + 1} if isinstance(module, torch.nn.LayerNorm) else {}
        )
    )
    run_layout(case, rank)
    handle.remove()
    return sorted(counts.values())


@pytest.mark.parametrize("mode", ["master", "autocast"])
@pytest.mark.parametrize(("schedule", "virtual_stages"), [("1f1b", 1), ("zbv", 2)])
def test_bf16_computes_the_same_bits_again(schedule, virtual_stages, mode):
    given = case(schedule, virtual_stages, micro_batch_size=1, precision="bf16", bf16_mode=mode)
    again = replace(given, activation_checkpointing="full")
    assert_parity(run_on_ranks(given), run_on_ranks(again), loss=0.0, tensors=0.0)


@pytest.mark.parametrize(("schedule", "virtual_stages"), SCHEDULES)
@pytest.mark.parametrize(("parts", "times"), [("none", 1), ("full", 2), ("selective", 1)])
def test_blocks_are_computed_once_more(schedule, virtual_stages, parts, times):
    """By the calls of their two norms; also where the backward pass is split, and asks several times."""
    given = case(schedule, virtual_stages, micro_batch_size=1, steps=1, activation_checkpointing=parts)
    counts = [count for rank in run_ranks(forwards, 2, given) for count in rank]
    final_norm = [given.samples]
    assert sorted(counts) == sorted(final_norm + [given.samples * times] * 4 * virtual_stages)
