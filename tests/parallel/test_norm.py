"""The global gradient norm and clipping, on a case with a known value."""

import pytest
import torch

from gooseslo.engine.clip import agree_on, clip_gradients
from gooseslo.parallel.data.buffer import GradientBuffer
from gooseslo.parallel.data.flat import Sharding
from gooseslo.parallel.mesh import ParallelContext, Topology
from gooseslo.testing.ranks import run_ranks


def clipped(rank, world_size):
    """A split gradient (3 on rank 0, 4 on rank 1) and a replicated one (12 on both)."""
    context = ParallelContext(Topology(tp=2), rank)
    split, replicated = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    buffer = GradientBuffer([[split, replicated]], Sharding(replica_group=context.dp_group))
    split.grad.fill_(3.0 + rank)
    replicated.grad.fill_(12.0)
    counted = [split, replicated] if rank == 0 else [split]
    norm = agree_on(counted=counted, groups=[context.model_group], device=torch.device("cpu")).norm
    clip_gradients(buffer.flats, norm, 1.0)
    return norm.item(), split.grad.item(), replicated.grad.item()


def test_each_parameter_counts_once():
    for rank, (norm, split, replicated) in enumerate(run_ranks(clipped, 2)):
        assert norm == 13.0
        assert split == pytest.approx((3 + rank) / 13, rel=1e-6)
        assert replicated == pytest.approx(12 / 13, rel=1e-6)


def test_a_limit_of_zero_and_a_small_norm_change_nothing():
    for limit in (0.0, 20.0):
        parameter = torch.nn.Parameter(torch.zeros(2))
        buffer = GradientBuffer([[parameter]], Sharding())
        parameter.grad.copy_(torch.tensor([5.0, 12.0]))
        clip_gradients(buffer.flats, agree_on(counted=[parameter], groups=[], device=torch.device("cpu")).norm, limit)
        assert parameter.grad.tolist() == [5.0, 12.0]
