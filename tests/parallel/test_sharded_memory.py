"""What ZeRO's stages save, counted from the tensors alive on one of four data-parallel ranks."""

import contextlib

import pytest
import torch

from gooseslo.engine.build import build_step
from gooseslo.engine.plan import make_plan
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.testing.memory import Alive, PeakBytes, num_bytes, optimizer_bytes
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case
from gooseslo.testing.ranks import run_ranks

SHARE = 0.27  # a quarter, and a little for what does not divide


def case(stage, *, n_layer=12, **changes):
    """Twelve equal blocks, beside which embeddings and activations are small."""
    fields = tiny_fields("gpt2", n_layer=n_layer, n_embd=64, vocab_size=32, n_positions=8)
    sizes = {"samples": 8, "micro_batch_size": 1, "sequence_length": 8, "precision": "fp32", **changes}
    return Case(fields=fields, zero_stage=stage, **{"dp": 4, **sizes})


def measure(rank, world_size, case):
    """Bytes of this rank, of the second step: weights between steps, gradients before the update, moments, peak."""
    alive = Alive()
    plan = make_plan(case.job(), num_devices=0)
    context = ParallelContext(plan.topology, rank)
    job = case.job()
    step_once = build_step(plan, context, job.train, zero=job.zero, seed=0, device=torch.device("cpu"))
    stepped = [part.parameter for part in step_once.data_parallel.stepped]
    optimizer = torch.optim.AdamW(stepped, fused=True)
    gradients = []

    def update():
        gradients.append(alive.gradient_bytes())
        optimizer.step()

    share = case.samples // case.dp
    for step in range(2):
        ids, labels = (tensor[context.at.dp * share :][:share] for tensor in case.batch(step))
        with PeakBytes(alive) if step else contextlib.nullcontext() as peak:
            step_once(ids, labels, step=step, update=update)
    found = {"weights": alive.parameter_bytes(), "optimizer": optimizer_bytes(optimizer), "peak": peak.most}
    context.close()
    return {**found, "gradients": gradients[-1], "parameters": sum(p.numel() for p in stepped)}


@pytest.fixture(scope="module")
def bytes_of():
    """Stage -> what rank 0 measured."""
    return {stage: run_ranks(measure, 4, case(stage))[0] for stage in (0, 1, 2, 3)}


def test_stage_0_holds_all(bytes_of):
    number = 4 * bytes_of[0]["parameters"]  # fp32
    assert number <= bytes_of[0]["weights"] < 1.01 * number
    assert number <= bytes_of[0]["gradients"] < 1.01 * number
    assert 2 * number <= bytes_of[0]["optimizer"] < 2.02 * number
    assert bytes_of[0]["peak"] > 4 * number


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_moments_are_shared_out_from_stage_1_on(bytes_of, stage):
    assert bytes_of[stage]["optimizer"] <= SHARE * bytes_of[0]["optimizer"]


@pytest.mark.parametrize("stage", [2, 3])
def test_gradients_are_shared_out_from_stage_2_on(bytes_of, stage):
    assert bytes_of[stage]["gradients"] <= SHARE * bytes_of[0]["gradients"]


def test_weights_are_shared_out_at_stage_3(bytes_of):
    assert bytes_of[3]["weights"] <= SHARE * bytes_of[0]["weights"]


def test_the_peak_inside_a_step_falls_with_each_stage(bytes_of):
    peaks = [bytes_of[stage]["peak"] for stage in (0, 1, 2, 3)]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[3] <= 0.45 * peaks[0]


def test_views_count_once_and_freed_storages_not():
    whole = torch.zeros(100)
    assert num_bytes([whole, whole[10:], torch.zeros(1)]) == 404
    whole.untyped_storage().resize_(0)
    assert num_bytes([whole]) == 0


def test_the_peak_counts_what_was_alive_at_once():
    with PeakBytes(Alive()) as peak:
        before = peak.most
        first = torch.zeros(1000)
        second = first + 1
        del first
        third = second + 1
        del second, third
    assert peak.most - before == 8000


def test_the_peak_sees_what_only_autograd_holds():
    alive = Alive()
    weight = torch.zeros(1000, requires_grad=True)
    with PeakBytes(alive) as peak:
        before = peak.most
        total = (weight.exp().exp().exp()).sum()  # three results are saved, of which no name is left
        kept = peak.now() - before
        total.backward()
    assert 12000 <= kept < 12100
