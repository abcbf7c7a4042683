"""Under ZeRO's stage 1 the new weights travel until a stage computes with them, and nobody uses them before."""

from dataclasses import replace

import pytest
import torch
from test_early_reduction import case

from gooseslo.engine.build import build_step
from gooseslo.engine.data_parallel import segment
from gooseslo.engine.plan import make_plan
from gooseslo.parallel.data import distributed
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.parallel.pipeline.callbacks import PipelineCallback
from gooseslo.testing.parity import OPTIMIZERS, assert_parity, run_layout, run_reference
from gooseslo.testing.ranks import run_ranks


class Late:
    """A gathering that is done when it is waited for, and not before."""

    def __init__(self, gather, seen):
        self.gather, self.seen = gather, seen

    def wait(self):
        self.seen.append("wait")
        self.gather()


class GatheringLate:
    def __init__(self, seen=None):
        self.seen, self.original = [] if seen is None else seen, distributed.begin_all_gather

    def __enter__(self):
        def late(whole, group):
            self.seen.append("start")
            return Late(lambda: self.original(whole, group).wait(), self.seen)

        distributed.begin_all_gather = late
        return self

    def __exit__(self, *error):
        distributed.begin_all_gather = self.original


def with_late_weights(rank, world_size, case):
    with GatheringLate() as gathering:
        outcome = run_layout(case, rank)
    assert gathering.seen.count("start") == gathering.seen.count("wait") > 0
    return outcome


CASES = [("1f1b", 1, {"pp": 2}), ("zbv", 2, {"pp": 2}), ("1f1b", 1, {"pp": 1}), ("1f1b", 1, {"pp": 1, "tp": 2})]


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize(("schedule", "virtual_stages", "sizes"), CASES)
def test_nobody_uses_weights_that_have_not_arrived(schedule, virtual_stages, sizes, offload):
    options = {"dp": 2, "micro_batch_size": 1, "zero_stage": 1, "optimizer": "adamw", **sizes}
    given = replace(case(schedule, virtual_stages, **options), zero_offload=offload)
    actual = run_ranks(with_late_weights, given.world_size, given)[0]
    assert_parity(run_reference(given), actual, loss=1e-12, tensors=1e-9)


class Forwards(PipelineCallback):
    def __init__(self, seen):
        self.seen = seen

    def before_forward(self, micro_batch, stage):
        self.seen.append(stage)


def events(rank, world_size, case):
    """Of a second step: waits, and forward passes by stage; and how many flat tensors each stage's pass needs."""
    plan, seen, job = make_plan(case.job(), num_devices=0), [], case.job()
    context = ParallelContext(plan.topology, rank)
    step = build_step(plan, context, job.train, zero=job.zero, seed=0, device=torch.device("cpu"))
    optimizer = OPTIMIZERS["sgd"]([part.parameter for part in step.data_parallel.stepped])
    share = case.samples // case.dp
    mine = slice(context.at.dp * share, (context.at.dp + 1) * share)
    ids, labels = case.batch(0)
    with GatheringLate(seen):
        step(ids[mine], labels[mine], step=0, update=optimizer.step)
        # Added now: with callbacks a step waits for all at its end, since they may look at the weights.
        step.runner.work._callbacks._callbacks.append(Forwards(seen))
        first_step = list(seen)
        step(ids[mine], labels[mine], step=1, update=optimizer.step)
    segments = segment(step.model)
    context.close()
    needed = {stage: len(list(segments.needed_by(stage))) for stage in segments.of_stage}
    return first_step, seen[len(first_step) :], needed


def test_a_stage_waits_for_its_own_weights_alone():
    given = case("zbv", 2, dp=2, micro_batch_size=1, zero_stage=1)
    for first_step, second_step, needed in run_ranks(events, 4, given):
        assert set(first_step) == {"start"}, "the step ends while its weights travel"
        order = list(dict.fromkeys(each for each in second_step if isinstance(each, int)))
        first, second = (second_step.index(stage) for stage in order)
        assert needed[order[0]] < len(first_step)
        assert second_step[:first].count("wait") == needed[order[0]]
        assert second_step[:second].count("wait") == len(first_step)
