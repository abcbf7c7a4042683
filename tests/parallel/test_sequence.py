"""Sequence parallelism: what travels, how often, and what is kept for the backward pass."""

from unittest import mock

import pytest
import torch
import torch.distributed as dist

from gooseslo.engine.build import build_step
from gooseslo.engine.plan import make_plan
from gooseslo.parallel.collectives import cut_sequence, gather_sequence, join_sequence, sum_scatter_sequence
from gooseslo.parallel.mesh import ParallelContext, Topology
from gooseslo.parallel.pipeline.schedule import PipelineRunner
from gooseslo.parallel.tensor import regions
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case
from gooseslo.testing.ranks import run_ranks


def conjugates(rank, world_size):
    """Each collective's value and gradient on known [1, 4, 1] data that differs by rank."""
    context = ParallelContext(Topology(tp=world_size), rank)
    group = context.tp_group
    results = {}
    whole = torch.arange(4.0).view(1, 4, 1) + 10 * rank
    shard = torch.tensor([[[1.0], [2.0]]]) + 10 * rank
    for function, x in (
        (gather_sequence, shard),
        (join_sequence, shard),
        (sum_scatter_sequence, whole),
        (cut_sequence, whole),
    ):
        x = x.clone().requires_grad_()
        y = function(x, group)
        # The weights of the sum are the gradient: 1, 2, ... on rank 0, ten times as much on rank 1.
        weights = torch.arange(1.0, y.shape[1] + 1).view(1, -1, 1) * (10 if rank else 1)
        (y * weights).sum().backward()
        results[function.__name__] = (y.flatten().tolist(), x.grad.flatten().tolist())
    context.close()
    return results


def test_conjugate_pairs():
    one, other = run_ranks(conjugates, 2)
    # Joined; the gradients of both ranks summed, then cut.
    assert one["gather_sequence"] == ([1, 2, 11, 12], [11, 22])
    assert other["gather_sequence"] == ([1, 2, 11, 12], [33, 44])
    # Joined; each rank's own gradient cut.
    assert one["join_sequence"] == ([1, 2, 11, 12], [1, 2])
    assert other["join_sequence"] == ([1, 2, 11, 12], [30, 40])
    # Summed and cut; the gradients joined.
    assert one["sum_scatter_sequence"] == ([10, 12], [1, 2, 10, 20])
    assert other["sum_scatter_sequence"] == ([14, 16], [1, 2, 10, 20])
    # Cut; the gradients joined.
    assert one["cut_sequence"] == ([0, 1], [1, 2, 10, 20])
    assert other["cut_sequence"] == ([12, 13], [1, 2, 10, 20])


def built(rank, case):
    plan = make_plan(case.job(), num_devices=0)
    context = ParallelContext(plan.topology, rank)
    return build_step(plan, context, case.job().train, seed=0, device=torch.device("cpu")), context


def gathers(rank, world_size, case):
    """All-gathers and all-reduces of one training step of one micro-batch."""
    step, context = built(rank, case)
    counts = {"gather": 0, "scatter": 0, "reduce": 0}
    gather, scatter, reduce = dist.all_gather_single, dist.reduce_scatter_single, dist.all_reduce

    def counted(name, function):
        def call(*args, **options):
            counts[name] += 1
            return function(*args, **options)

        return call

    dist.all_gather_single = counted("gather", gather)
    dist.reduce_scatter_single = counted("scatter", scatter)
    dist.all_reduce = counted("reduce", reduce)
    try:
        ids, labels = case.batch(0)
        step.model.module.train()
        step.runner.train(ids, labels)
    finally:
        dist.all_gather_single, dist.reduce_scatter_single, dist.all_reduce = gather, scatter, reduce
    context.close()
    return counts


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_messages_of_a_layer(family, sequence_parallel):
    """Forward two sums a layer, one for attention and one for the MLP; backward two: as Megatron, not one a linear."""
    case = Case(
        architecture=family,
        fields=tiny_fields(family),
        tp=2,
        samples=2,
        sequence_parallel=sequence_parallel,
    )
    [counts, _] = run_ranks(gathers, 2, case)
    layers = 4
    if not sequence_parallel:
        # Embedding 1, loss 3, head backward 1; per layer 2 forward, 2 backward.
        assert counts == {"gather": 0, "scatter": 0, "reduce": 5 + 4 * layers}
    else:
        # Per layer 2 gathers forward, 2 of the row layers' gradients, 2 again for the column layers' weights;
        # the whole is cut at the first block and joined at the last.
        assert counts == {"gather": 2 + 6 * layers, "scatter": 4 * layers, "reduce": 5}


def test_hidden_states_between_stages_are_shards():
    case = Case(fields=tiny_fields("gpt2"), tp=2, pp=2, samples=8, sequence_parallel=True)
    for first, shape in run_ranks(stage_shapes, 4, case):
        assert shape == [2, 8, 24], first


def stage_shapes(rank, world_size, case):
    step, context = built(rank, case)
    assert isinstance(step.runner, PipelineRunner)
    ids, labels = case.batch(0)
    seen = []
    module = step.model.module
    module.register_forward_hook(lambda m, args, out: seen.append(out if context.is_first_stage else args[0]))
    module.train()
    step.runner.train(ids, labels)
    context.close()
    return context.is_first_stage, list(seen[0].shape)


def saved_in_regions(rank, world_size, case):
    """What autograd saves in the regions of one forward pass: uses of a shard in place of the whole, and wholes."""
    step, context = built(rank, case)
    counts = {"shards": 0, "wholes": 0}
    pack = regions._Gathered.pack

    def counted(gathered, tensor):
        saved = pack(gathered, tensor)
        if not isinstance(saved, torch.Tensor):
            counts["shards"] += 1
        elif saved.numel() >= gathered._whole_size:
            counts["wholes"] += 1
        return saved

    with mock.patch.object(regions._Gathered, "pack", counted):
        step.runner.module.train()(case.batch(0)[0][: case.micro_batch_size])
    context.close()
    return counts


@pytest.mark.parametrize("precision", [{"precision": "fp32"}, {"precision": "bf16", "bf16_mode": "autocast"}])
@pytest.mark.parametrize(("family", "column_layers"), [("gpt2", 2), ("llama", 5)])
def test_only_the_shard_of_a_region_is_kept(family, column_layers, precision):
    """In a model whose other tensors in a region are all smaller than its input."""
    sizes = {"gpt2": {"n_embd": 32, "n_inner": 4}, "llama": {"hidden_size": 32, "intermediate_size": 4}}[family]
    fields = tiny_fields(family, **sizes)
    case = Case(architecture=family, fields=fields, tp=4, samples=4, sequence_parallel=True, **precision)
    expected = {"shards": 4 * column_layers, "wholes": 0}
    assert run_ranks(saved_in_regions, 4, case) == [expected] * 4
