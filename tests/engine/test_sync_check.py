"""debug.check_sync: a healthy run passes, and a planted difference is named with its ranks, step and size."""

import pytest
import torch

from gooseslo.engine.build import build_step, by_saved_name
from gooseslo.engine.optimizer import build_optimizer
from gooseslo.engine.plan import make_plan
from gooseslo.engine.sync_check import OutOfSyncError
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.schema.groups import AdamWConfig
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case
from gooseslo.testing.ranks import run_ranks


def checked(rank, world_size, case, plant=None):
    """Three steps; `plant(step, rank, index)` disturbs a rank before one. What was found, on which step."""
    plan = make_plan(case.job(), num_devices=0)
    context = ParallelContext(plan.topology, rank)
    step = build_step(plan, context, case.job().train, seed=0, device=torch.device("cpu"), check_sync=True)
    optimizer = build_optimizer(AdamWConfig(lr=1e-3), by_saved_name(step))
    share = case.samples // case.dp
    mine = slice(context.at.dp * share, (context.at.dp + 1) * share)
    try:
        for index in range(3):
            if plant is not None and index == 1 and rank == world_size - 1:
                plant(step, optimizer)
            ids, labels = case.batch(index)
            step(ids[mine], labels[mine], step=index, update=optimizer.step)
    except OutOfSyncError as error:
        return str(error)
    finally:
        context.close()
    return None


def case_of(*, precision="fp32", **layout):
    return Case(fields=tiny_fields("gpt2", n_layer=2), samples=8, precision=precision, clip_grad_norm=1.0, **layout)


@pytest.mark.parametrize(
    "layout",
    [{"tp": 2, "pp": 2, "sequence_parallel": True}, {"pp": 2, "dp": 2}, {"tp": 2, "precision": "bf16"}],
    ids=str,
)
def test_a_healthy_run_passes(layout):
    case = case_of(**layout)
    assert run_ranks(checked, case.world_size, case) == [None] * case.world_size


@torch.no_grad()
def shift_weight(step, optimizer):
    name = next(name for name in step.model.parameters() if name.endswith("ln_f.bias"))
    step.model.parameters()[name][3] += 0.5


@torch.no_grad()
def shift_tied(step, optimizer):
    step.model.parameters()["lm_head.weight"][1, 1] += 0.25


def forget_a_sum(step, optimizer):
    """As if one rank's gradient of a norm had not been summed over the data-parallel ranks."""
    reduce = step.data_parallel.reduce

    def wrong():
        reduce()
        next(p for name, p in step.model.parameters().items() if name.endswith("ln_1.weight")).grad[0] += 0.125

    step.data_parallel.reduce = wrong


def another_rate(step, optimizer):
    optimizer.param_groups[0]["lr"] *= 2


@pytest.mark.parametrize(
    ("plant", "layout", "words"),
    [
        (
            shift_weight,
            {"pp": 2, "dp": 2},
            ["before the update of step 2", "transformer.ln_f.bias by up to 0.5", "tp=0 pp=1 dp=0 | tp=0 pp=1 dp=1"],
        ),
        (
            shift_weight,
            {"tp": 2, "pp": 2},
            ["before the update of step 2", "transformer.ln_f.bias by up to 0.5", "tp=0 pp=1 dp=0 | tp=1 pp=1 dp=0"],
        ),
        (
            shift_tied,
            {"pp": 2},
            ["before the update of step 2", "transformer.wte.weight by up to 0.25", "tp=0 pp=0 dp=0 | tp=0 pp=1 dp=0"],
        ),
        (
            forget_a_sum,
            {"dp": 2},
            ["before the update of step 2", "the gradient of transformer.h.0.ln_1.weight by up to 0.12"],
        ),
        (another_rate, {"dp": 2}, ["after the update of step 2", " more", "dp=0 | tp=0 pp=0 dp=1"]),
        (another_rate, {"dp": 2, "precision": "bf16"}, ["after the update of step 2", "the master of transformer."]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_difference_is_named_on_all_ranks(plant, layout, words):
    case = case_of(**layout)
    found = run_ranks(checked, case.world_size, case, plant)
    assert len(set(found)) == 1 and found[0] is not None
    for word in words:
        assert word in found[0], found[0]
