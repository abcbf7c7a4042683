"""The time that a stage computes: without its waiting, over all micro-batches, and of the last step alone."""

from __future__ import annotations

import time

import pytest
import torch

from gooseslo.engine.build import build_step
from gooseslo.engine.plan import make_plan
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.parallel.pipeline.stopwatch import Stopwatch
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case
from gooseslo.testing.ranks import run_ranks


def test_it_sums_what_runs_and_begins_anew():
    watch = Stopwatch(torch.device("cpu"))
    for _ in range(2):
        time.sleep(0.02)
        with watch.running():
            time.sleep(0.02)
    assert 0.04 <= watch.seconds() < 0.08
    watch.reset()
    assert watch.seconds() == 0.0


def slow_stage(rank, world_size, layout, slow_rank, schedule):
    """Seconds by stage of two steps, where each forward and each backward of one rank takes 20 ms more."""
    case = Case(fields=tiny_fields("gpt2"), samples=8, schedule=schedule, **layout)
    plan = make_plan(case.job(), num_devices=0)
    step = build_step(plan, ParallelContext(plan.topology, rank), case.job().train, seed=0, device=torch.device("cpu"))

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            time.sleep(0.02)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            time.sleep(0.02)
            return gradient

    if rank == slow_rank:
        step.model.module.register_forward_hook(lambda module, inputs, output: Sleep.apply(output))
    measured = []
    for index in range(2):
        ids, labels = case.batch(index)
        began = time.perf_counter()
        step.gradients(ids, labels, step=index)
        measured.append((step.stage_seconds(), time.perf_counter() - began))
    return measured[1]


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_waiting_for_another_stage_does_not_count(slow, schedule):
    """4 micro-batches, forward and backward: 160 ms on the slow stage; the other waits for most of that."""
    outcomes = run_ranks(slow_stage, 2, {"pp": 2}, slow, schedule)
    for rank, (stages, step_seconds) in enumerate(outcomes):
        assert stages[1 - rank] == 0.0 and 0.0 < stages[rank] < step_seconds
    assert outcomes[slow][0][slow] >= 0.16
    assert outcomes[1 - slow][0][1 - slow] < outcomes[slow][0][slow] - 0.08


def test_one_stage_counts_forward_loss_and_backward():
    ((stages, step_seconds),) = run_ranks(slow_stage, 1, {}, 0, "1f1b")
    assert len(stages) == 1 and 0.16 <= stages[0] < step_seconds


def test_on_cuda_the_events_are_read_once_and_used_again(monkeypatch):
    """With events that tell the time of a counted clock: no block waits, and a second step makes no new event."""
    log, clock = [], iter(range(0, 1000, 10))

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing
            log.append("made")

        def record(self):
            self.at = next(clock)

        def synchronize(self):
            log.append("waited")

        def elapsed_time(self, end):
            return end.at - self.at  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    watch = Stopwatch(torch.device("cuda"))
    for _ in range(2):
        watch.reset()
        for _ in range(3):
            with watch.running():
                pass
        assert watch.seconds() == pytest.approx(0.03)
    assert log == ["made"] * 6 + ["waited"] * 2
