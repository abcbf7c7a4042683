"""A split backward pass puts weight gradients off and computes nothing twice: products and reductions are counted."""

import math
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from gooseslo.engine.build import build_step
from gooseslo.engine.plan import make_plan
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.parallel.pipeline.callbacks import PipelineCallback
from gooseslo.schema.schedules import RULES, SPLIT_BACKWARD
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case
from gooseslo.testing.ranks import run_ranks

LENGTH, NUM_MICRO, LAYERS = 7, 4, 4
LINEARS = {"gpt2": 4, "llama": 7}
"""Of one block."""


class Phase(PipelineCallback):
    """What is being computed, and on which stage."""

    now = None

    def before(self, kind, micro_batch, stage):
        self.now = (kind, stage)

    def after(self, kind, micro_batch, stage):
        self.now = None


class Products(TorchDispatchMode):
    """Counts matrix products by phase: those that give a weight's gradient, known by its shape, and the others."""

    def __init__(self, phase, shapes):
        super().__init__()
        self.phase, self.shapes, self.counts = phase, shapes, Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default):
            what = "weight" if tuple(result.shape) in self.shapes else "other"
            self.counts[what, *self.phase.now] += 1
        return result


def counted(rank, world_size, case):
    """(products, reductions over the tp group) of this rank by phase and stage, in one step."""
    plan = make_plan(case.job(), num_devices=0)
    context, phase = ParallelContext(plan.topology, rank), Phase()
    step = build_step(plan, context, case.job().train, seed=0, device=torch.device("cpu"), callbacks=[phase])
    weights = [p for name, p in step.model.parameters().items() if p.dim() == 2 and "wpe" not in name]
    shapes = {tuple(p.shape) for p in weights} | {tuple(p.shape[::-1]) for p in weights}
    assert not any(LENGTH in shape for shape in shapes), "an activation would look like a weight"
    reductions, all_reduce = Counter(), dist.all_reduce

    def reduce(tensor, *args, **kwargs):
        if phase.now is not None and tensor.numel() >= LENGTH * 24:
            reductions[phase.now] += 1
        return all_reduce(tensor, *args, **kwargs)

    dist.all_reduce = reduce
    try:
        with Products(phase, shapes) as products:
            step.gradients(*case.batch(0), step=0)
    finally:
        dist.all_reduce = all_reduce
    return products.counts, reductions


def totals(family, schedule):
    """The counts of all stages together, of the first tp rank."""
    number = {"gpt2": "n_layer", "llama": "num_hidden_layers"}[family]
    fields = tiny_fields(family, **{number: LAYERS})
    sizes = {"samples": NUM_MICRO, "micro_batch_size": 1, "sequence_length": LENGTH}
    case = Case(architecture=family, fields=fields, tp=2, pp=2, schedule=schedule, partition="uniform", **sizes)
    per_rank = [run for index, run in enumerate(run_ranks(counted, 4, case)) if index % 2 == 0]
    return [sum((rank[part] for rank in per_rank), Counter()) for part in (0, 1)]


def summed(counts, *, by):
    """Over what `by` leaves out of the keys."""
    found = Counter()
    for key, count in counts.items():
        found[by(key)] += count
    return found


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_no_product_and_no_reduction_is_made_twice(family):
    expected_products, expected_reductions = totals(family, "1f1b")
    weights = summed(expected_products, by=lambda key: key[0])["weight"]
    assert weights == NUM_MICRO * (LAYERS * LINEARS[family] + 1), "one a linear and micro-batch, and the head's"
    for schedule in SPLIT_BACKWARD:
        products, reductions = totals(family, schedule)
        kinds = [summed(each, by=lambda key: key[0]) for each in (products, expected_products)]
        assert kinds[0] == kinds[1], f"{schedule}: {products}"
        assert sum(reductions.values()) == sum(expected_reductions.values()), f"{schedule}: {reductions}"


@pytest.mark.parametrize("schedule", ["zbv", "interleaved_zb"])
def test_weight_gradients_are_put_off(schedule):
    """All of every stage's but the first: that one has no input whose gradient anybody waits for."""
    products, _ = totals("gpt2", schedule)
    last = 2 * RULES[schedule].virtual_stages - 1
    for stage in range(1, last + 1):
        put_off, at_once = products["weight", "backward_weight", stage], products["weight", "backward", stage]
        linears = LINEARS["gpt2"] * math.ceil(LAYERS / (last + 1)) + (stage == last)
        assert (put_off, at_once) == (NUM_MICRO * linears, 0)
    assert products["other", "backward_weight", 1] == 0
