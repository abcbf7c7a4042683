"""An infinity or a NaN on one rank: all skip the same step, only the data moves, and it is told with its samples."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from short_runs import step_folder, trainer_of

from gooseslo.engine import bad_steps
from gooseslo.engine.build import build_step, by_saved_name
from gooseslo.engine.loss_scale import GROWTH_STEPS, LossScale
from gooseslo.engine.optimizer import build_optimizer
from gooseslo.engine.plan import make_plan
from gooseslo.parallel.mesh import Coordinates, ParallelContext
from gooseslo.schema.groups import AdamWConfig
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case, full_weights
from gooseslo.testing.ranks import run_ranks

BAD_STEP = 2
"""Counted from 0."""


def poison_gradient(step, value):
    """Put `value` into one gradient of this rank, in the next step alone, before anything is summed over ranks."""
    reduce = step.data_parallel.reduce
    name = next(name for name in step.model.parameters() if name.endswith("ln_1.weight"))

    def poisoned():
        step.model.parameters()[name].grad.view(-1)[0] = value
        reduce()
        del step.data_parallel.reduce

    step.data_parallel.reduce = poisoned


def poison_late(step, value):
    """The same after the sum over data-parallel ranks: in this rank's copy alone."""
    reduce = step.data_parallel.reduce
    name = next(name for name in step.model.parameters() if name.endswith("ln_1.weight"))

    def poisoned():
        reduce()
        step.model.parameters()[name].grad.view(-1)[0] = value
        del step.data_parallel.reduce

    step.data_parallel.reduce = poisoned


def poison_loss(step, value):
    """Make the loss of this rank's second micro-batch `value`, in the next step alone; only a last stage has losses."""
    loss, seen = step.runner.loss, []

    def poisoned(logits, labels):
        seen.append(loss(logits, labels))
        return seen[-1] * value if len(seen) == 2 else seen[-1]

    step.runner.loss = poisoned
    return lambda: setattr(step.runner, "loss", loss)


POISONS = {"gradient": poison_gradient, "late": poison_late, "loss": poison_loss}


def steps_with_a_bad_one(rank, world_size, case, kind, value, bad_rank):
    """Of five steps: which were skipped, the scale after each, losses, whether weights moved; and what is told."""
    plan = make_plan(case.job(), num_devices=0)
    context = ParallelContext(plan.topology, rank)
    train = case.job().train
    step = build_step(plan, context, train, seed=0, device=torch.device("cpu"), check_sync=True)
    optimizer = build_optimizer(AdamWConfig(lr=1e-3), by_saved_name(step))
    share = case.samples // case.dp
    mine = slice(context.at.dp * share, (context.at.dp + 1) * share)
    seen = SimpleNamespace(skipped=[], scales=[], losses=[], moved=[], told=None)
    for index in range(5):
        before = {part.name: part.parameter.detach().clone() for part in step.data_parallel.stepped}
        undo = None
        if index == BAD_STEP and rank == bad_rank:
            undo = POISONS[kind](step, value)
        ids, labels = case.batch(index)
        result = step(ids[mine], labels[mine], step=index, update=optimizer.step)
        if undo is not None:
            undo()
        if result.skipped and not result.skip.is_overflow:
            numbers = torch.arange(case.samples)[mine] + 100 * index
            seen.told = bad_steps.describe(result.skip, numbers, step=index + 1, first_position=case.samples * index)
        seen.skipped.append(result.skipped)
        seen.scales.append(step.loss_scale.value)
        seen.losses.append(result.loss)
        seen.moved.append(not all(torch.equal(before[p.name], p.parameter) for p in step.data_parallel.stepped))
    full_weights(step)  # which asserts that copies are equal
    context.close()
    return seen


def case_of(layout, precision="fp32"):
    tp, pp, dp = layout
    return Case(fields=tiny_fields("gpt2", n_layer=2), tp=tp, pp=pp, dp=dp, samples=8, precision=precision)


def assert_only_the_bad_step_is_skipped(seen):
    assert seen.skipped == [index == BAD_STEP for index in range(5)]
    assert seen.moved == [index != BAD_STEP for index in range(5)]
    assert all(math.isfinite(loss) for index, loss in enumerate(seen.losses) if index != BAD_STEP)


@pytest.mark.parametrize("kind", ["gradient", "late"])
@pytest.mark.parametrize("layout", [(2, 2, 1), (1, 2, 2)], ids=str)
def test_an_overflow_on_one_rank_is_skipped_by_all_and_halves_the_scale(layout, kind):
    """On the last rank: of tp, the copy of a norm that is not counted in the global norm."""
    case = case_of(layout, "fp16")
    for seen in run_ranks(steps_with_a_bad_one, 4, case, kind, math.inf, 3):
        assert_only_the_bad_step_is_skipped(seen)
        assert seen.scales == [65536.0, 65536.0, 32768.0, 32768.0, 32768.0]
        assert seen.told is None and math.isfinite(seen.losses[BAD_STEP])


@pytest.mark.parametrize(("layout", "place"), [((2, 2, 1), "tp=1 pp=1 dp=0"), ((1, 2, 2), "tp=0 pp=1 dp=1")], ids=str)
def test_a_gradient_that_is_not_a_number_on_one_rank_is_skipped_by_all_and_told(layout, place):
    for seen in run_ranks(steps_with_a_bad_one, 4, case_of(layout), "gradient", math.nan, 3):
        assert_only_the_bad_step_is_skipped(seen)
        assert seen.scales == [1.0] * 5
        assert "step 3 is skipped: every loss is finite, but the gradient is not, on" in seen.told
        assert place in seen.told and "samples 200, 201, 202, 203, 204, 205, 206, 207;" in seen.told
        assert "positions 16 to 23 of the data's order" in seen.told


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(("layout", "dp", "samples"), [((2, 2, 1), 0, "202, 203"), ((1, 2, 2), 1, "206, 207")], ids=str)
def test_a_loss_that_is_not_a_number_on_one_rank_is_told_with_its_samples(layout, dp, samples, precision):
    """Also in fp16, where it is no overflow: the scale stays."""
    for seen in run_ranks(steps_with_a_bad_one, 4, case_of(layout, precision), "loss", math.nan, 3):
        assert_only_the_bad_step_is_skipped(seen)
        assert len(set(seen.scales)) == 1
        assert f"the loss is not finite in micro-batch 1 of dp={dp}: samples {samples};" in seen.told


def test_the_scale_doubles_after_many_updates_and_never_falls_below_one():
    scale = LossScale.of("fp16", None)
    for _ in range(GROWTH_STEPS - 1):
        scale.passed()
    assert scale.value == 65536.0
    scale.passed()
    assert (scale.value, scale.good_steps) == (131072.0, 0)
    scale.passed()
    scale.fell()
    assert (scale.value, scale.good_steps) == (65536.0, 0)
    for _ in range(20):
        scale.fell()
    assert scale.value == 1.0 and not scale.may_fall
    fixed = LossScale.of("fp16", 128.0)
    fixed.passed()
    assert (fixed.value, fixed.may_fall, fixed.state()) == (128.0, False, None)
    assert LossScale.of("bf16", None) == LossScale()


def test_a_fixed_scale_and_the_dynamic_one_give_the_gradients_and_norm_of_no_scale():
    found = {}
    for name, precision, fixed in (("fp32", "fp32", None), ("dynamic", "fp16", None), ("fixed", "fp16", 1000.0)):
        case = case_of((1, 1, 1), precision)
        train = case.job().train
        train = type(train)(**{**vars(train), "loss_scale": fixed, "clip_grad_norm": 0.1})
        plan = make_plan(case.job(), num_devices=0)
        step = build_step(plan, ParallelContext(plan.topology), train, seed=0, device=torch.device("cpu"))
        result = step(*case.batch(0), step=0, update=lambda: None)
        flat = torch.cat(step.data_parallel.flats)
        assert result.grad_norm > 0.1 and flat.norm().item() == pytest.approx(0.1, rel=1e-3)
        found[name] = (result.loss, result.grad_norm, flat)
    for name in ("dynamic", "fixed"):
        assert found[name][:2] == pytest.approx(found["fp32"][:2], rel=2e-3)
        assert (found[name][2] - found["fp32"][2]).norm() < 0.01 * found["fp32"][2].norm()


def test_small_gradients_live_in_fp16_by_the_scale_alone():
    """A gradient of 1e-9 is zero in fp16; times 65536 it is not."""
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float16))
    ((weight.float() * 1e-9).sum()).backward()
    assert weight.grad.item() == 0
    weight.grad = None
    ((weight.float() * 1e-9).sum() * LossScale.of("fp16", None).value).backward()
    assert weight.grad.item() / 65536 == pytest.approx(1e-9, rel=0.01)


def overflowing_run(rank, world_size, case, run_dir, start, stop_after):
    """A run of 20 steps with a warm-up of 4 whose first two attempts overflow: where it stands, scale, rates."""
    trainer, position = trainer_of(rank, world_size, case, run_dir, start, stop_after, AdamWConfig(lr=1e-3), steps=20)
    step, rates = trainer.train_step, []
    first = position
    run_once = step.data_parallel.reduce

    def reduce():
        run_once()
        if len(seen) < 2 - first.skipped:
            step.data_parallel.flats[0][0] = math.inf
        seen.append(1)

    seen = []
    step.data_parallel.reduce = reduce
    update = trainer.optimizer.step
    trainer.optimizer.step = lambda: (rates.append(trainer.optimizer.param_groups[0]["lr"]), update())
    position = trainer.fit(position)
    step.context.close()
    return position, step.loss_scale, rates


def test_skipped_attempts_move_neither_schedule_nor_updates_and_a_resume_keeps_all_counters(tmp_path):
    case = Case(fields=tiny_fields("gpt2", n_layer=2), precision="fp16")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    position, scale, rates = overflowing_run(0, 1, case, run_dir, None, 2)
    assert (position.updates, position.skipped, scale.value, rates) == (0, 2, 16384.0, [])
    assert position.consumed_samples == 2 * 8 and position.bad_in_a_row == 0
    state = json.loads((step_folder(run_dir, 2) / "state.json").read_text())
    assert state["loss_scale"] == {"value": 16384.0, "good_steps": 0} and state["position"]["skipped"] == 2
    position, scale, rates = overflowing_run(0, 1, case, run_dir, step_folder(run_dir, 2), 5)
    assert rates == [0.0, 2.5e-4, 5e-4], "from the first rate on, not the third"
    assert (position.updates, position.skipped, scale.value, scale.good_steps) == (3, 2, 16384.0, 3)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["skipped"] for line in lines] == [True, True, False, False, False]
    assert [line["loss_scale"] for line in lines] == [32768.0, 16384.0, 16384.0, 16384.0, 16384.0]
    assert [line["overflow"] for line in lines] == [True, True, False, False, False]


def test_a_paragraph_cuts_long_lists():
    class Everyone:
        def gather(self, value):
            return [value]

    skip = bad_steps.Skip(
        is_overflow=False, bad_losses=(), num_micro_batches=4, gradients_are_finite=False, at=Coordinates()
    )
    text = bad_steps.describe(skip, torch.arange(400), step=9, first_position=3200, ranks=Everyone())
    assert len(text) < 400 and "15 and 384 more; the step had positions 3200 to 3599" in text
