"""Callbacks are told of every computation once, on the rank that does it, under every schedule."""

from collections import Counter

import pytest
import torch

from gooseslo.engine.build import build_step
from gooseslo.engine.plan import make_plan
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.parallel.pipeline.callbacks import KINDS, Callbacks, PipelineCallback
from gooseslo.schema.schedules import RULES, SPLIT_BACKWARD
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case
from gooseslo.testing.ranks import run_ranks


class Log(PipelineCallback):
    def __init__(self):
        self.events = []


for kind in KINDS:
    for when in ("before", "after"):
        name = f"{when}_{kind}"
        setattr(Log, name, lambda self, micro, stage, name=name: self.events.append((name, micro, stage)))


def events(rank, world_size, case):
    """Of one training step and one evaluation of this rank."""
    plan = make_plan(case.job(), num_devices=0)
    context, log = ParallelContext(plan.topology, rank), Log()
    step = build_step(plan, context, case.job().train, seed=0, device=torch.device("cpu"), callbacks=[log])
    ids, labels = (tensor.chunk(case.dp)[context.at.dp] for tensor in case.batch(0))
    step.gradients(ids, labels, step=1)
    trained, log.events = log.events, []
    step.evaluate(ids, labels)
    return trained, log.events


def tiny(schedule, **changes):
    pp, virtual = changes.get("pp", 2), RULES[schedule].virtual_stages if changes.get("pp", 2) > 1 else 1
    fields = tiny_fields("gpt2", n_layer=pp * virtual)
    sizes = {"samples": 8, "micro_batch_size": 1, "sequence_length": 8}
    return Case(architecture="gpt2", fields=fields, schedule=schedule, **{"pp": 2, **sizes, **changes})


def computations(found):
    """(kind, micro-batch, stage) of each that began, after proof that it ended before another of its stage's began."""
    open_, begun = [], []
    for name, micro, stage in found:
        when, _, kind = name.partition("_")
        if when == "before":
            assert not open_ or kind == "recompute", f"{name} inside {open_}"
            open_.append((kind, micro, stage))
            begun.append((kind, micro, stage))
        else:
            assert open_.pop() == (kind, micro, stage)
    assert not open_
    return Counter(begun)


@pytest.mark.parametrize("schedule", RULES)
def test_each_computation_once(schedule):
    case = tiny(schedule, activation_checkpointing="full")
    per_rank = run_ranks(events, 2, case)
    stages = range(2 * RULES[schedule].virtual_stages)
    every = {(micro, stage) for micro in range(8) for stage in stages}
    trained = sum((computations(found) for found, _ in per_rank), Counter())
    kinds = {"forward", "backward", "recompute"} | ({"backward_weight"} if schedule in SPLIT_BACKWARD else set())
    assert {kind for kind, *_ in trained} == kinds and set(trained.values()) == {1}
    for kind in ("forward", "backward", "recompute"):
        assert {(micro, stage) for name, micro, stage in trained if name == kind} == every
    evaluated = sum((computations(found) for _, found in per_rank), Counter())
    assert evaluated == Counter(("forward", micro, stage) for micro, stage in every)


def test_without_a_pipeline_and_with_replicas_micro_batches_are_counted_over_all():
    per_rank = run_ranks(events, 2, tiny("1f1b", pp=1, dp=2))
    told = [sorted(micro for kind, micro, _ in computations(found) if kind == "forward") for found, _ in per_rank]
    assert told == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_several_are_called_inside_out():
    order = []

    class Named(PipelineCallback):
        def __init__(self, name):
            self.name = name

        def before_forward(self, micro_batch, stage):
            order.append(f"{self.name} before")

        def after_forward(self, micro_batch, stage):
            order.append(f"{self.name} after")

    with Callbacks([Named("one"), Named("two")]).around("forward", 0, 0):
        order.append("computes")
    assert order == ["one before", "two before", "computes", "two after", "one after"]
