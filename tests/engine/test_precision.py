"""Which numbers a run in bf16 keeps in fp32: masters, moments, gradients; and that it learns as fp32 does."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from gooseslo.engine.build import build_step, by_saved_name
from gooseslo.engine.optimizer import build_optimizer
from gooseslo.engine.plan import make_plan
from gooseslo.engine.precision import DTYPES, CastStage
from gooseslo.parallel.data.buffer import GradientBuffer
from gooseslo.parallel.data.flat import Sharding
from gooseslo.parallel.data.masters import Masters
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.schema.groups import AdamWConfig
from gooseslo.schema.ranges import TRAIN_CHOICES
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import OPTIMIZERS, Case, run_reference
from gooseslo.testing.ranks import run_ranks

BF16, FP32 = torch.bfloat16, torch.float32
MODES = ["master", "autocast"]


def case_of(mode="master", **changes):
    return Case(**{"fields": tiny_fields("gpt2"), "precision": "bf16", "bf16_mode": mode, "samples": 8, **changes})


def built(case, rank=0):
    plan = make_plan(case.job(), num_devices=0)
    context = ParallelContext(plan.topology, rank)
    step = build_step(plan, context, case.job().train, seed=0, device=torch.device("cpu"))
    return step, build_optimizer(AdamWConfig(lr=1e-3), by_saved_name(step))


def dtypes_after_two_steps(rank, world_size, case):
    """Of weights, of what is stepped, of its moments, of `.grad`; and whether those are still the buffer's views."""
    step, optimizer = built(case, rank)
    for index in range(2):
        step(*case.batch(index), step=index, update=optimizer.step)
    stepped, weights = step.data_parallel.masters.parameters, step.model.parameters()
    moments = {state[key].dtype for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")}
    return {
        "weights": {p.dtype for p in weights.values()},
        "stepped": {p.dtype for p in stepped.values()},
        "moments": moments,
        "gradients": {p.grad.dtype for p in [*weights.values(), *stepped.values()]},
        "buffer": {flat.dtype for flat in step.data_parallel.buffer.flats},
        "views": all(p.grad is step.data_parallel.buffer.views[p] for p in weights.values()),
        "same gradient": all(stepped[n].grad.data_ptr() == p.grad.data_ptr() for n, p in weights.items()),
        "rounded": all(torch.equal(stepped[n].to(p.dtype), p) for n, p in weights.items()),
        "finer": any(not torch.equal(stepped[n], p.to(FP32)) for n, p in weights.items()),
    }


@pytest.mark.parametrize("layout", [{}, {"pp": 2}, {"tp": 2}, {"pp": 2, "schedule": "gpipe"}])
def test_bf16_weights_have_fp32_masters_moments_and_gradients(layout):
    case = case_of(**layout)
    for found in run_ranks(dtypes_after_two_steps, case.world_size, case):
        assert found == {
            "weights": {BF16},
            "stepped": {FP32},
            "moments": {FP32},
            "gradients": {FP32},
            "buffer": {FP32},
            "views": True,
            "same gradient": True,
            "rounded": True,
            "finer": True,
        }


def test_autocast_keeps_all_of_it_in_fp32():
    found = dtypes_after_two_steps(0, 1, case_of("autocast"))
    assert [found[kind] for kind in ("weights", "stepped", "moments", "gradients", "buffer")] == [{FP32}] * 5
    assert not found["finer"], "no copies"


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_full_precision_steps_its_weights_themselves(precision):
    step, _ = built(case_of(precision=precision))
    weights, stepped = step.model.parameters(), step.data_parallel.masters.parameters
    assert (
        all(stepped[name] is parameter for name, parameter in weights.items())
        and not step.data_parallel.masters.are_copies
    )


def test_the_first_masters_are_the_fp32_draw_and_the_weights_its_rounding():
    drawn = built(case_of(precision="fp32"))[0].model.parameters()
    step, _ = built(case_of())
    for name, value in drawn.items():
        assert torch.equal(step.data_parallel.masters.parameters[name], value)
        assert torch.equal(step.model.parameters()[name], value.to(BF16))
    autocast, _ = built(case_of("autocast"))
    assert all(torch.equal(autocast.model.parameters()[name], value) for name, value in drawn.items())


def test_micro_batches_are_added_in_fp32():
    """256 + 1 + 1 in bf16 is 256: the ones would be lost."""
    weight = torch.nn.Parameter(torch.ones(1, dtype=BF16))
    buffer = GradientBuffer([[weight]], Sharding())
    for value in (256.0, 1.0, 1.0):
        (weight * torch.full((1,), value, dtype=BF16)).sum().backward()
    assert buffer.flats[0].item() == 258.0 and weight.grad is buffer.views[weight]


def summed_over_ranks(rank, world_size):
    """bf16 would round 1 + 3/512 to 1 + 4/512 (measured on gloo)."""
    context = ParallelContext(make_plan(case_of(dp=2).job(), num_devices=0).topology, rank)
    weight = torch.nn.Parameter(torch.ones(1, dtype=BF16))
    buffer = GradientBuffer([[weight]], Sharding(replica_group=context.dp_group))
    (weight * torch.tensor([1.0 if rank == 0 else 3 / 512], dtype=BF16)).sum().backward()
    buffer.reduce()
    return weight.grad.item()


def test_ranks_are_added_in_fp32():
    assert run_ranks(summed_over_ranks, 2) == [1 + 3 / 512] * 2


def test_a_master_takes_updates_that_its_weight_cannot():
    """1 - 1e-3 rounds to 1 in bf16 (its spacing below 1 is 2^-8 / 2); four of them do not."""
    weights = {"w": torch.nn.Parameter(torch.ones(1))}
    masters = Masters(weights, BF16)
    masters.take_gradients(GradientBuffer([[weights["w"]]], Sharding()))
    optimizer = torch.optim.SGD(masters.parameters.values(), lr=1e-3)
    seen = []
    for _ in range(4):
        weights["w"].grad.fill_(1.0)
        optimizer.step()
        masters.write_back()
        seen.append(weights["w"].item())
    assert seen[0] == 1.0 and seen[-1] == 1 - 2**-8
    assert masters.parameters["w"].item() == pytest.approx(0.996)


def test_a_skipped_step_leaves_masters_and_weights():
    step, optimizer = built(case_of())
    with torch.no_grad():
        step.data_parallel.masters.parameters["transformer.ln_f.weight"][0] = torch.inf
    step.data_parallel.masters.write_back()
    before = {name: p.detach().clone() for name, p in step.data_parallel.masters.parameters.items()}
    assert step(*case_of().batch(0), step=0, update=optimizer.step).skipped
    assert all(torch.equal(before[name], p) for name, p in step.data_parallel.masters.parameters.items())


@pytest.mark.parametrize(("mode", "hidden", "logits"), [("master", BF16, BF16), ("autocast", FP32, BF16)])
def test_stages_send_the_dtype_that_the_next_one_expects(mode, hidden, logits):
    """torch's schedule does not compare; what is sent in another dtype would be read as other numbers."""
    plan = make_plan(case_of(mode, pp=2).job(), num_devices=0)
    assert (plan.dtypes.hidden, plan.dtypes.logits) == (hidden, logits)
    stage = torch.nn.Linear(4, 4)
    for stage.is_last in (False, True):
        cast = CastStage(stage.to(plan.dtypes.weights), plan.dtypes)
        assert cast(torch.ones(1, 4, dtype=hidden)).dtype == (logits if stage.is_last else hidden)


def test_matrix_products_are_bf16_under_autocast_and_norms_are_not():
    step, _ = built(case_of("autocast"))
    model, seen = step.model.module.model, {}
    for name in ("transformer.h.0.mlp.c_fc", "lm_head", "transformer.h.0.ln_1", "transformer.ln_f"):
        model.get_submodule(name).register_forward_hook(
            lambda module, args, out, name=name: seen.update({name: out.dtype})
        )
    step.gradients(*case_of().batch(0), step=0)
    assert list(seen.values()) == [FP32, BF16, FP32, BF16] and list(seen)[-1] == "lm_head"


def losses_on_ranks(rank, world_size, case):
    """The losses and gradient norms of the case's steps."""
    step, _ = built(case, rank)
    optimizer = OPTIMIZERS[case.optimizer](list(step.data_parallel.masters.parameters.values()))
    share = case.samples // case.dp
    mine = slice(step.context.at.dp * share, (step.context.at.dp + 1) * share)
    results = []
    for index in range(case.steps):
        ids, labels = case.batch(index)
        results.append(step(ids[mine], labels[mine], step=index, update=optimizer.step))
    return [result.loss for result in results], [result.grad_norm for result in results]


LONG = {"steps": 50, "samples": 4, "optimizer": "adamw", "clip_grad_norm": 1.0, "fixed_batch": True}


@pytest.fixture(scope="module")
def fp32():
    """50 losses of plain transformers in fp32."""
    losses = run_reference(case_of(precision="fp32", **LONG)).losses
    assert losses[-1] < losses[0] - 0.5, "else any two runs would agree"
    return losses


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", [{}, {"tp": 2, "pp": 2}], ids=["1-1-1", "2-2-1"])
def test_fifty_losses_are_within_a_percent_of_fp32(fp32, mode, layout):
    case = case_of(mode, **LONG, **layout)
    for losses, _ in run_ranks(losses_on_ranks, case.world_size, case):
        assert losses == pytest.approx(fp32, rel=0.01)
        assert losses != pytest.approx(fp32, rel=1e-7), "bf16 was computed"


@pytest.mark.parametrize("mode", MODES)
def test_layouts_agree_within_the_rounding_of_bf16(mode):
    case = case_of(mode, steps=3, samples=8)
    one, norms = losses_on_ranks(0, 1, case)
    for layout in ({"tp": 2}, {"pp": 2}, {"dp": 2}):
        other = replace(case, **layout)
        for losses, other_norms in run_ranks(losses_on_ranks, 2, other):
            assert losses == pytest.approx(one, rel=2**-9)
            assert other_norms == pytest.approx(norms, rel=2**-6)


def test_auto_is_bf16_on_cuda_and_fp32_on_the_cpu():
    job = case_of("master", precision="auto").job()
    assert make_plan(job, num_devices=0).precision == "fp32"
    plan = make_plan(replace(job, device="auto"), num_devices=1)
    assert plan.precision == "bf16" and "bf16 with fp32 masters on cuda" in str(plan)


def test_every_choice_of_precision_means_something():
    precisions, modes = (set(TRAIN_CHOICES[f"train.{key}"]) for key in ("precision", "bf16_mode"))
    assert set(DTYPES) == set(product(precisions - {"auto"}, modes))
