"""Stages: where blocks go, whose loss is told, that tied copies stay equal, that accumulation adds."""

import pytest
import torch

from gooseslo.engine.build import build_step
from gooseslo.engine.plan import make_plan
from gooseslo.errors import TopologyError
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.parallel.pipeline.partition import layer_ranges, partition_by_weight, partition_uniform
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case, gather_full, run_reference
from gooseslo.testing.ranks import run_ranks


def test_uniform_partition():
    assert partition_uniform(4, 2) == [2, 2]
    assert partition_uniform(7, 3) == [2, 3, 2]
    assert partition_uniform(5, 4) == [1, 2, 1, 1]
    with pytest.raises(TopologyError, match="pp=5"):
        partition_uniform(4, 5)


@pytest.mark.parametrize(
    ("weights", "pp", "ends", "expected"),
    [
        ([1.0] * 4, 2, (0, 0), [2, 2]),
        ([1.0] * 12, 2, (5.6, 5.5), [6, 6]),
        ([1.0] * 8, 4, (2.0, 2.0), [1, 3, 3, 1]),
        ([1.0] * 6, 3, (0, 3.0), [2, 3, 1]),
        ([1.0] * 3, 3, (100.0, 0), [1, 1, 1]),
    ],
)
def test_partition_by_weight_counts_what_the_ends_hold(weights, pp, ends, expected):
    counts = partition_by_weight(weights, pp, first=ends[0], last=ends[1])
    heaviest = lambda c: max(  # noqa: E731
        len(r) + (ends[0] if s == 0 else 0) + (ends[1] if s == pp - 1 else 0) for s, r in enumerate(layer_ranges(c))
    )
    assert sum(counts) == len(weights)
    assert heaviest(counts) == heaviest(expected)
    assert counts == expected


def ends_after_training(rank, world_size, case):
    """The local copy of the tied table after each step, and the losses that this rank was told."""
    plan = make_plan(case.job(), num_devices=0)
    context = ParallelContext(plan.topology, rank)
    step = build_step(plan, context, case.job().train, seed=0, device=torch.device("cpu"))
    optimizer = torch.optim.SGD(step.model.parameters().values(), lr=case_lr(case))
    copies, losses = [], []
    for index in range(5):
        result = step(*case.batch(index), step=index, update=optimizer.step)
        losses.append(result.loss)
        copies.append({name: p.detach().clone() for name, p in step.model.tied_ends.parameters.items()})
    return copies, losses


def case_lr(case):
    return 0.0 if case.seed == 99 else 0.5


def test_tied_copies_stay_bit_equal():
    case = Case(fields=tiny_fields("gpt2"), pp=2, samples=8)
    (first, _), (last, _) = run_ranks(ends_after_training, 2, case)
    for step in range(5):
        assert set(first[step]) == {"transformer.wte.weight"}
        assert torch.equal(first[step]["transformer.wte.weight"], last[step]["transformer.wte.weight"])
    assert not torch.equal(first[0]["transformer.wte.weight"], first[1]["transformer.wte.weight"])


def test_every_rank_knows_the_loss_and_it_is_that_of_its_own_batch():
    """Five different batches at a rate of zero: a label from another batch would give another loss."""
    case = Case(fields=tiny_fields("gpt2"), pp=2, samples=8, steps=5, seed=99)
    losses = [losses for _, losses in run_ranks(ends_after_training, 2, case)]
    assert losses[0] == losses[1]
    single = [run_ranks(ends_after_training, 1, Case(fields=tiny_fields("gpt2"), samples=8, seed=99))[0][1]]
    assert losses[0] == pytest.approx(single[0], rel=1e-12)
    assert len({round(loss, 6) for loss in losses[0]}) == 5


def accumulated(rank, world_size, case):
    """The gradient after two schedules' runs without zeroing in between, as `grad` and as their sum."""
    plan = make_plan(case.job(), num_devices=0)
    context = ParallelContext(plan.topology, rank)
    step = build_step(plan, context, case.job().train, seed=0, device=torch.device("cpu"))
    step.model.module.train()
    parts = []
    for index in (0, 1):
        step.data_parallel.buffer.zero()
        step.runner.train(*case.batch(index))
        parts.append([flat.clone() for flat in step.data_parallel.buffer.flats])
    step.data_parallel.buffer.zero()
    for index in (0, 1):
        step.runner.train(*case.batch(index))
    return [
        ((a + b) - both).abs().max().item() / both.abs().max().item()
        for a, b, both in zip(*parts, step.data_parallel.buffer.flats)
    ]


def test_accumulating_over_runs_adds_and_never_rescales():
    case = Case(fields=tiny_fields("gpt2"), pp=2, samples=8)
    for differences in run_ranks(accumulated, 2, case):
        assert max(differences) < 1e-12


def gradient_of_parts(rank, world_size, case):
    """The whole gradients of two batches: what is learnt from lies in the first third, or the same in the last."""
    plan = make_plan(case.job(), num_devices=0)
    context = ParallelContext(plan.topology, rank)
    step = build_step(plan, context, case.job().train, seed=0, device=torch.device("cpu"))
    (ids, labels), third = case.batch(0), case.samples // 3
    found = []
    for order in (torch.arange(case.samples), torch.arange(case.samples).roll(-third)):
        placed = labels.clone()
        placed[third:] = -100
        step.gradients(ids[order], placed[order], step=0)
        found.append(gather_full(step, {name: p.grad.clone() for name, p in step.model.parameters().items()}))
    return found


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_where_in_a_step_a_gradient_is_made_does_not_scale_it(schedule):
    """12 micro-batches of which 4 are learnt from: first or last, they weigh what they weigh in one process."""
    sizes = {"samples": 12, "micro_batch_size": 1, "sequence_length": 12}
    pair = run_ranks(gradient_of_parts, 2, Case(fields=tiny_fields("gpt2"), pp=2, schedule=schedule, **sizes))[0]
    (alone,) = run_ranks(gradient_of_parts, 1, Case(fields=tiny_fields("gpt2"), **sizes))
    for found in (*pair, alone[1]):
        for name, expected in alone[0].items():
            assert (found[name] - expected).norm() <= 1e-9 * max(expected.norm(), 1e-3), name


def refused_batches(rank, world_size, case):
    """What the runner says of batches of other lengths and sizes, and the losses of those that fit, in between."""
    plan = make_plan(case.job(), num_devices=0)
    context = ParallelContext(plan.topology, rank)
    step = build_step(plan, context, case.job().train, seed=0, device=torch.device("cpu"))
    losses, messages = [], []
    for samples, length in ((8, 8), (8, 12), (8, 5), (6, 8), (8, 20), (8, 8)):
        ids = torch.zeros(samples, length, dtype=torch.long)
        for run in (step.runner.train, step.runner.evaluate):
            try:
                losses += [loss.item() for loss in run(ids, ids)]
            except TopologyError as error:
                messages.append(str(error))
    return losses, messages


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_a_batch_of_another_length_is_refused_and_never_cut(schedule):
    """By all ranks alike, before a message is sent: the next batch runs."""
    case = Case(fields=tiny_fields("gpt2"), pp=2, samples=8, sequence_length=8, schedule=schedule)
    found = run_ranks(refused_batches, 2, case)
    for _, messages in found:
        assert len(messages) == 2 * 4
        assert (
            messages[0]
            == "a batch of 8 samples of 12 tokens: the stages of this pipeline exchange 8 samples of 8 tokens"
        )
    (losses,) = (losses for losses, _ in found if losses)
    assert len(losses) == 4 * 4 and losses == pytest.approx([losses[0]] * 16)


def test_the_reference_learns():
    """Else a layout could equal it and learn nothing."""
    losses = run_reference(Case(fields=tiny_fields("gpt2"), samples=8, steps=5, fixed_batch=True)).losses
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.2


def shares(rank, world_size):
    fields = {"n_layer": 12, "n_embd": 96, "n_head": 12, "vocab_size": 6300, "n_positions": 128}
    case = Case(fields=tiny_fields("gpt2", **fields), tp=2, pp=2)
    plan = make_plan(case.job(), num_devices=0)
    context = ParallelContext(plan.topology, rank)
    step = build_step(plan, context, case.job().train, seed=0, device=torch.device("cpu"))
    held = sum(p.numel() for p in step.model.parameters().values())
    assert held == plan.local_parameters[context.at.pp, context.at.tp]
    return held / plan.num_parameters


def test_the_plan_knows_what_a_rank_holds():
    """GPT-2's proportions: a quarter of the blocks, half of the table on both ends, the positions on one."""
    assert max(run_ranks(shares, 4)) <= 0.34
