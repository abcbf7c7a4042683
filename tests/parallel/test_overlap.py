"""The sum of a region's input gradients travels under the weight gradients, each of which is computed once."""

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from gooseslo.engine.build import build_step
from gooseslo.engine.plan import make_plan
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case
from gooseslo.testing.ranks import run_ranks

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


class Events(TorchDispatchMode):
    """What happens in which order: matrix products, and sums that start and are waited for."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in PRODUCTS:
            self.seen.append("product")
        return function(*args, **(kwargs or {}))


class Announced:
    def __init__(self, work, seen):
        self.work, self.seen = work, seen

    def wait(self):
        self.seen.append("wait")
        return self.work.wait()


def events_of_a_step(rank, world_size, case):
    plan = make_plan(case.job(), num_devices=0)
    context = ParallelContext(plan.topology, rank)
    step = build_step(plan, context, case.job().train, seed=0, device=torch.device("cpu"))
    originals = {name: getattr(dist, name) for name in ("all_reduce", "reduce_scatter_single")}

    def announced(function):
        def call(*args, **options):
            work = function(*args, **options)
            if not options.get("async_op"):
                return work
            events.seen.append("start")
            return Announced(work, events.seen)

        return call

    with Events() as events:
        for name, function in originals.items():
            setattr(dist, name, announced(function))
        try:
            step.model.train()
            step.runner.train(*case.batch(0))
        finally:
            for name, function in originals.items():
                setattr(dist, name, function)
    context.close()
    return events.seen


def case_of(family, **changes):
    return Case(architecture=family, fields=tiny_fields(family), tp=2, **{"samples": 2, **changes})


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize(("family", "layers_in_a_region"), [("gpt2", [1, 1]), ("llama", [3, 2])])
def test_weight_products_run_while_the_sum_travels(family, layers_in_a_region, sequence_parallel):
    seen = run_ranks(events_of_a_step, 2, case_of(family, sequence_parallel=sequence_parallel))[0]
    between = []
    while "start" in seen:
        seen = seen[seen.index("start") + 1 :]
        between.append(seen[: seen.index("wait")].count("product"))
    attention, mlp = layers_in_a_region
    assert between == [1] + [mlp, attention] * 4, "the head's, then of each block"


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("schedule", ["zbv", "dualpipev", "interleaved_zb"])
def test_a_split_backward_pass_computes_no_product_twice(family, schedule):
    """As many products as under a schedule that does not split it, over all ranks."""

    def products(schedule, **changes):
        case = case_of(family, pp=2, schedule=schedule, micro_batch_size=1, **changes)
        counts = [seen.count("product") for seen in run_ranks(events_of_a_step, 4, case)]
        return sum(counts)

    changes = {"samples": 4} if schedule == "dualpipev" else {}
    whole = products("interleaved_1f1b", **changes)
    assert products(schedule, **changes) == whole > 0
