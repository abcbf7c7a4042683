"""ZeRO's stages 2 and 3 against one process of plain transformers: under every schedule that they run with."""

from dataclasses import replace

import pytest
import torch
from test_recompute import DROPOUT
from test_schedules import case as schedule_case

from gooseslo.engine.build import build_step
from gooseslo.engine.plan import make_plan
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.testing.parity import assert_parity, run_on_ranks, run_reference
from gooseslo.testing.ranks import run_ranks

NONE = ("1f1b", 1, {"pp": 1, "dp": 2})
SCHEDULES = [("gpipe", 1, {}), ("1f1b", 1, {}), ("looped_bfs", 2, {}), ("interleaved_1f1b", 2, {})]
LAYOUTS = [NONE, ("1f1b", 1, {"pp": 1, "tp": 2}), *SCHEDULES]
FAST = [(2, "gpt2", "1f1b"), (3, "gpt2", "1f1b"), (3, "llama", "looped_bfs"), (2, "llama", "interleaved_1f1b")]
EXACT = {"loss": 1e-12, "tensors": 1e-9}


def case(schedule, virtual_stages, sizes, *, stage, family="gpt2", shard_size=None, **changes):
    options = {"dp": 2, "micro_batch_size": 1, **sizes, **changes}
    given = schedule_case(schedule, virtual_stages, family=family, **options)
    return replace(given, zero_stage=stage, zero_shard_size=shard_size)


def grid():
    for stage in (2, 3):
        for family in ("gpt2", "llama"):
            for schedule, virtual_stages, sizes in LAYOUTS:
                marks = () if (stage, family, schedule) in FAST else pytest.mark.slow
                yield pytest.param(stage, family, schedule, virtual_stages, sizes, marks=marks)


@pytest.mark.parametrize(("stage", "family", "schedule", "virtual_stages", "sizes"), list(grid()))
def test_fp64(stage, family, schedule, virtual_stages, sizes):
    """With gradients of 4 or 8 micro-batches, and clipping that bites."""
    given = case(schedule, virtual_stages, sizes, stage=stage, family=family, clip_grad_norm=0.1)
    one, other = run_reference(given), run_on_ranks(given)
    assert min(one.norms) > 0.1
    assert other.norms == pytest.approx(one.norms, rel=1e-12)
    assert_parity(one, other, **EXACT)


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "family", "schedule", "virtual_stages", "sizes"), list(grid()))
def test_fp32(stage, family, schedule, virtual_stages, sizes):
    given = case(schedule, virtual_stages, sizes, stage=stage, family=family, precision="fp32")
    assert_parity(run_reference(given), run_on_ranks(given), loss=1e-6, tensors=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize(("schedule", "virtual_stages", "sizes"), [NONE, SCHEDULES[1], SCHEDULES[3]])
def test_twenty_losses_fp32(stage, schedule, virtual_stages, sizes):
    options = {"precision": "fp32", "optimizer": "adamw", "steps": 20, "clip_grad_norm": 1.0}
    given = case(schedule, virtual_stages, sizes, stage=stage, **options)
    assert run_on_ranks(given).losses == pytest.approx(run_reference(given).losses, rel=1e-5)


SPECIAL = [
    # stage, family, schedule, virtual stages, sizes, what else
    (3, "gpt2", *NONE, {"tp": 2, "sequence_parallel": True}),
    (2, "llama", "1f1b", 1, {"tp": 2, "pp": 2, "dp": 1}, {}),
    (3, "llama", "1f1b", 1, {"pp": 1, "dp": 4}, {"shard_size": 2}),
    (3, "gpt2", "1f1b", 1, {"pp": 1, "dp": 2}, {"shard_size": 1}),
    (3, "gpt2", "interleaved_1f1b", 2, {}, {"ignore_some_labels": True}),
    (2, "llama", "1f1b", 1, {}, {"documents": True}),
]
MANY = [
    (2, "gpt2", "1f1b", 1, {"pp": 2, "dp": 4}, {"shard_size": 2}),
    # Only between stages does sequence parallelism give the blocks stand-ins without a gradient.
    (3, "llama", "1f1b", 1, {"tp": 2, "pp": 2}, {"sequence_parallel": True}),
]


@pytest.mark.parametrize(
    ("stage", "family", "schedule", "virtual_stages", "sizes", "changes"),
    [*SPECIAL, *(pytest.param(*cell, marks=pytest.mark.slow) for cell in MANY)],
)
def test_other_layouts_fp64(stage, family, schedule, virtual_stages, sizes, changes):
    given = case(schedule, virtual_stages, sizes, stage=stage, family=family, **changes)
    assert_parity(run_reference(given), run_on_ranks(given), **EXACT)


def test_weights_with_fewer_rows_than_ranks_fp64():
    """97 rows on 4 ranks are 25, 25, 25 and 22; 2 rows of a class score leave two ranks without any."""
    given = case("1f1b", 1, {"pp": 1, "dp": 4}, stage=3, head="sequence-classification", steps=2)
    given = replace(given, fields={**given.fields, "vocab_size": 97, "num_labels": 2, "pad_token_id": 96})
    assert_parity(run_reference(given), run_on_ranks(given), **EXACT)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize(
    ("schedule", "virtual_stages", "sizes", "parts"),
    [
        ("1f1b", 1, {"pp": 1}, "full"),
        pytest.param("1f1b", 1, {}, "full", marks=pytest.mark.slow),
        pytest.param("interleaved_1f1b", 2, {}, "selective", marks=pytest.mark.slow),
        ("1f1b", 1, {"pp": 1}, "selective"),
        pytest.param("looped_bfs", 2, {}, 2, marks=pytest.mark.slow),
        pytest.param("gpipe", 1, {"tp": 2, "pp": 1, "sequence_parallel": True}, "full", marks=pytest.mark.slow),
    ],
)
def test_recomputation_and_dropout(stage, schedule, virtual_stages, sizes, parts):
    """Against stage 0 of the same layout without recomputation: dropout draws by place, not by stage."""
    given = case(schedule, virtual_stages, sizes, stage=stage)
    given = replace(given, fields={**given.fields, **DROPOUT["gpt2"]})
    plain = replace(given, zero_stage=0)
    assert_parity(run_on_ranks(plain), run_on_ranks(replace(given, activation_checkpointing=parts)), **EXACT)


@pytest.mark.parametrize("stage", [pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("mode", ["master", "autocast"])
@pytest.mark.parametrize("sizes", [{"pp": 1}, pytest.param({}, marks=pytest.mark.slow)])
def test_bf16(stage, mode, sizes):
    """Against stage 0 of the same layout: the same products in bf16, and the same sums in fp32 in another order."""
    given = case("1f1b", 1, sizes, stage=stage, family="llama", precision="bf16", bf16_mode=mode, steps=1)
    assert_parity(run_on_ranks(replace(given, zero_stage=0)), run_on_ranks(given), loss=1e-6, tensors=1e-5)


def spoil_one_step(rank, world_size, case):
    """The second of three steps has a NaN in one rank's loss: what was skipped, and whether weights moved, by step."""
    plan = make_plan(case.job(), num_devices=0)
    context, job = ParallelContext(plan.topology, rank), case.job()
    step_once = build_step(plan, context, job.train, zero=job.zero, seed=0, device=torch.device("cpu"))
    stepped = [part.parameter for part in step_once.data_parallel.stepped]
    optimizer, loss = torch.optim.AdamW(stepped, lr=0.01), step_once.loss
    share, found = case.samples // case.dp, []
    for step in range(3):
        factor = float("nan") if step == 1 and rank == world_size - 1 else 1.0
        step_once.runner.loss = lambda *args, factor=factor: loss(*args) * factor
        before = [parameter.detach().clone() for parameter in stepped]
        ids, labels = (tensor[context.at.dp * share :][:share] for tensor in case.batch(step))
        result = step_once(ids, labels, step=step, update=optimizer.step)
        moved = [not torch.equal(one, other) for one, other in zip(before, stepped)]
        found.append((result.skipped, any(moved)))
    context.close()
    return found


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("sizes", [{"pp": 1}, pytest.param({}, marks=pytest.mark.slow)])
def test_a_gradient_that_is_not_finite_is_skipped_by_all_ranks(stage, sizes):
    given = case("1f1b", 1, sizes, stage=stage)
    for found in run_ranks(spoil_one_step, given.world_size, given):
        assert found == [(False, True), (True, False), (False, True)]


def evaluate_twice(rank, world_size, case):
    """Loss of a batch before and after the weights were changed from outside."""
    plan = make_plan(case.job(), num_devices=0)
    context, job = ParallelContext(plan.topology, rank), case.job()
    step_once = build_step(plan, context, job.train, zero=job.zero, seed=0, device=torch.device("cpu"))
    share, found = case.samples // case.dp, []
    ids, labels = (tensor[context.at.dp * share :][:share] for tensor in case.batch(0))
    for _ in range(2):
        found.append(step_once.evaluate(ids, labels).loss)
        with torch.no_grad():
            for part in step_once.data_parallel.stepped:
                part.parameter.mul_(1.5)
        step_once.data_parallel.write_back()
    context.close()
    return found


@pytest.mark.parametrize("stage", [2, 3])
def test_an_evaluation_sees_the_weights_as_they_are(stage):
    given = case("1f1b", 1, {"pp": 1}, stage=stage)
    plain = run_ranks(evaluate_twice, 2, replace(given, zero_stage=0))[0]
    assert run_ranks(evaluate_twice, 2, given)[0] == pytest.approx(plain, rel=1e-12)
    assert plain[0] != pytest.approx(plain[1], rel=1e-3)
