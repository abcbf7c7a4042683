"""A stage computes its last parts again while their gradient is on its way from the next stage, not after it came."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_schedules import SCHEDULES, case

from gooseslo.engine.build import build_step
from gooseslo.engine.plan import make_plan
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.parallel.pipeline.callbacks import PipelineCallback
from gooseslo.testing.parity import assert_parity, run_on_ranks, run_reference
from gooseslo.testing.ranks import run_ranks

DROPOUT = {"attn_pdrop": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1}


class Told(PipelineCallback):
    """Writes down what is computed; before a backward pass waits for what `gates` has of its stage."""

    def __init__(self, seen, folder, gates):
        self.seen, self.folder, self.gates = seen, Path(folder), gates

    def before_backward(self, micro_batch, stage):
        self.seen.append(("backward", stage, micro_batch))
        if stage in self.gates:
            gate = self.folder / f"recomputed-{stage - 1}-{micro_batch}"
            deadline = time.monotonic() + 20
            while not gate.exists():
                assert time.monotonic() < deadline, f"stage {stage - 1} computes nothing again before its gradient"
                time.sleep(0.001)

    def after_recompute(self, micro_batch, stage):
        self.seen.append(("recompute", stage, micro_batch))
        (self.folder / f"recomputed-{stage}-{micro_batch}").touch()


def events(rank, world_size, case, folder, gates):
    """What this rank computed in one step, and the stages of this rank whose gradients another rank sends."""
    job = case.job()
    plan, seen = make_plan(job, num_devices=0), []
    context = ParallelContext(plan.topology, rank)
    told = [Told(seen, folder, gates)]
    step = build_step(plan, context, job.train, zero=job.zero, seed=0, device=torch.device("cpu"), callbacks=told)
    ids, labels = case.batch(0)
    step.gradients(ids, labels, step=0)
    context.close()
    last, stages = plan.placement.num_stages - 1, plan.placement.stages_of(context.at.pp)
    return seen, [stage for stage in stages if stage != last and stage + 1 not in stages]


def before_backward(seen, stage, micro_batch):
    return seen[: seen.index(("backward", stage, micro_batch))].count(("recompute", stage, micro_batch))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_gradient_may_wait_for_it(schedule, tmp_path):
    """The last stage begins no backward pass before the first has computed its part of that micro-batch again."""
    given = case(schedule, 1, micro_batch_size=2, partition=[2, 2], activation_checkpointing="full")
    (first, _), _ = run_ranks(events, 2, given, str(tmp_path), (1,))
    assert len([event for event in first if event[0] == "recompute"]) == 4 * 2


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize(("schedule", "virtual_stages"), SCHEDULES)
def test_the_last_parts_of_each_stage(schedule, virtual_stages, ahead, tmp_path):
    given = case(schedule, virtual_stages, micro_batch_size=2, partition=[2] * 2 * virtual_stages)
    given = replace(given, activation_checkpointing="full", recompute_ahead=ahead)
    ranks = run_ranks(events, 2, given, str(tmp_path), ())
    for seen, sent in ranks:
        computed = {event for event in seen if event[0] == "backward"}
        assert computed
        for _, stage, micro_batch in computed:
            expected = min(ahead, 2) if stage in sent else 0
            assert before_backward(seen, stage, micro_batch) == expected, (stage, micro_batch, seen)
            assert seen.count(("recompute", stage, micro_batch)) == 2
    assert any(sent for _, sent in ranks)


FEW = [("1f1b", 1), ("zbv", 2)]
REST = [pytest.param(*each, marks=pytest.mark.slow) for each in SCHEDULES if each not in FEW]


@pytest.mark.parametrize(("schedule", "virtual_stages"), FEW + REST)
def test_dropout_and_the_rest_of_the_step_do_not_notice(schedule, virtual_stages):
    given = case(schedule, virtual_stages, tp=2, micro_batch_size=1, sequence_parallel=True)
    given = replace(given, fields={**given.fields, **DROPOUT})
    again = replace(given, activation_checkpointing="full", recompute_ahead=2)
    assert_parity(run_on_ranks(given), run_on_ranks(again), loss=1e-12, tensors=1e-9)


@pytest.mark.parametrize("parts", ["selective", 2])
def test_parts_of_blocks_and_every_other_block(parts):
    given = case("1f1b", 1, micro_batch_size=2, partition=[3, 2], activation_checkpointing=parts, recompute_ahead=2)
    assert_parity(run_reference(given), run_on_ranks(given), loss=1e-12, tensors=1e-9)


def test_sharded_weights_are_gathered_for_the_backward_pass_alone(tmp_path):
    given = case("1f1b", 1, micro_batch_size=2, dp=2, activation_checkpointing="full", zero_stage=3)
    for seen, _ in run_ranks(halved_events, 4, given, str(tmp_path)):
        for _, stage, micro_batch in (event for event in seen if event[0] == "backward"):
            assert before_backward(seen, stage, micro_batch) == 0


def halved_events(rank, world_size, case, folder):
    return events(rank, world_size, replace_batch(case), folder, ())


def replace_batch(case):
    """Each data-parallel rank is given the batch of one: what it computes does not matter here."""
    whole = case.batch
    object.__setattr__(case, "batch", lambda step: tuple(tensor[: case.samples // case.dp] for tensor in whole(step)))
    return case
