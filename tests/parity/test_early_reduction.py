"""Gradients are summed over the data-parallel ranks as soon as nothing more is added to them, and not before."""

from pathlib import Path

import pytest
import torch
from test_schedules import SCHEDULES, case

from gooseslo.engine import data_parallel
from gooseslo.engine.build import build_step
from gooseslo.engine.plan import make_plan
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.parallel.pipeline.callbacks import PipelineCallback
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case, assert_parity, run_layout, run_reference
from gooseslo.testing.ranks import run_ranks


class Backwards(PipelineCallback):
    def __init__(self, seen):
        self.seen = seen

    def before_backward(self, micro_batch, stage):
        self.seen.append(("backward begins", stage))

    def after_backward(self, micro_batch, stage):
        self.seen.append(("backward", stage))

    def after_backward_weight(self, micro_batch, stage):
        self.seen.append(("backward", stage))


def events(rank, world_size, case, bucket_bytes):
    """Of one step: backward computations of stages, and the beginnings of reductions by segment."""
    data_parallel.BUCKET_BYTES, before = bucket_bytes, data_parallel.BUCKET_BYTES
    plan, seen = make_plan(case.job(), num_devices=0), []
    context = ParallelContext(plan.topology, rank)
    job = case.job()
    step = build_step(
        plan, context, job.train, zero=job.zero, seed=0, device=torch.device("cpu"), callbacks=[Backwards(seen)]
    )
    segments = data_parallel.segment(step.model).of_stage
    data_parallel.BUCKET_BYTES = before
    begin = step.data_parallel.buffer.begin_reduce
    step.data_parallel.buffer.begin_reduce = lambda segment: (seen.append(("reduce", segment)), begin(segment))
    share = case.samples // case.dp
    mine = slice(context.at.dp * share, (context.at.dp + 1) * share)
    ids, labels = case.batch(0)
    step.gradients(ids[mine], labels[mine], step=0)
    context.close()
    return seen, segments


@pytest.mark.parametrize("zero_stage", [0, 1])
@pytest.mark.parametrize(("schedule", "virtual_stages"), SCHEDULES)
def test_a_stage_is_reduced_after_its_last_backward_pass(schedule, virtual_stages, zero_stage):
    given = case(schedule, virtual_stages, dp=2, micro_batch_size=1, zero_stage=zero_stage)
    for seen, segments in run_ranks(events, 4, given, data_parallel.BUCKET_BYTES):
        for stage, numbers in segments.items():
            last_backward = max(at for at, event in enumerate(seen) if event == ("backward", stage))
            last_begin = max(at for at, event in enumerate(seen) if event == ("backward begins", stage))
            for number in numbers:
                first_reduce = seen.index(("reduce", number))
                assert last_begin < first_reduce <= last_backward + len(numbers)


def test_several_segments_begin_within_the_last_backward_pass():
    given = Case(fields=tiny_fields("gpt2"), dp=2, samples=8)
    for seen, segments in run_ranks(events, 2, given, 4096):
        begins = [at for at, event in enumerate(seen) if event[0] == "backward begins"]
        end = max(at for at, event in enumerate(seen) if event[0] == "backward")
        within = [event[1] for event in seen[begins[-1] : end] if event[0] == "reduce"]
        assert len(segments[0]) > 5 and len(within) >= len(segments[0]) - 1, seen


def with_small_buckets(rank, world_size, case):
    data_parallel.BUCKET_BYTES, before = 4096, data_parallel.BUCKET_BYTES
    try:
        return run_layout(case, rank)
    finally:
        data_parallel.BUCKET_BYTES = before


@pytest.mark.parametrize("zero_stage", [0, 1])
@pytest.mark.parametrize("layout", [{"dp": 2}, {"dp": 2, "tp": 2}, {"dp": 2, "pp": 2}])
def test_many_segments_change_nothing(layout, zero_stage):
    fields = tiny_fields("gpt2")
    given = Case(fields=fields, samples=8, zero_stage=zero_stage, activation_checkpointing="full", **layout)
    expected = run_reference(given)
    assert_parity(expected, run_ranks(with_small_buckets, given.world_size, given)[0], loss=1e-12, tensors=1e-9)


def threads_after_a_run(rank, world_size, case):
    run_layout(case, rank)
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Threads")]
    return int(line.split()[1])


@pytest.mark.parametrize("zero_stage", [0, 1, 3])
def test_a_run_leaves_no_process_group_behind(zero_stage):
    """Each has threads that wake up; what hooks of parameters hold is never collected."""
    given = Case(fields=tiny_fields("gpt2"), dp=2, samples=8, steps=1, zero_stage=zero_stage)
    counts = [run_ranks(threads_after_a_run, 2, given)[0] for _ in range(5)]
    assert counts[-1] <= counts[1], counts
