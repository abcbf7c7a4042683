"""The `mpu` protocol: each getter names the rank, the size and the members that the mesh gives."""

import pytest
import torch.distributed as dist

from gooseslo.parallel.mesh import ParallelContext, Topology
from gooseslo.testing.ranks import run_ranks

AXES = ("tensor_model", "tensor", "pipeline", "data", "model")


def getters(rank, world_size, topology):
    """By axis: rank, size, global ranks of the group, and this rank's place in it."""
    context = ParallelContext(topology, rank)
    found = {}
    for axis in AXES:
        group = getattr(context, f"get_{axis}_parallel_group")()
        found[axis] = (
            getattr(context, f"get_{axis}_parallel_rank")(),
            getattr(context, f"get_{axis}_parallel_world_size")(),
            dist.get_process_group_ranks(group),
            dist.get_rank(group),
        )
    context.close()
    return found


# tp varies fastest, then dp, then pp; by rank, the group's members.
TWO_OF_ALL = {
    "tensor": [[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [4, 5], [6, 7], [6, 7]],
    "data": [[0, 2], [1, 3], [0, 2], [1, 3], [4, 6], [5, 7], [4, 6], [5, 7]],
    "pipeline": [[0, 4], [1, 5], [2, 6], [3, 7], [0, 4], [1, 5], [2, 6], [3, 7]],
    "model": [[0, 1, 4, 5], [0, 1, 4, 5], [2, 3, 6, 7], [2, 3, 6, 7]] * 2,
}
TENSOR_AND_PIPELINE = {
    "tensor": [[0, 1], [0, 1], [2, 3], [2, 3]],
    "data": [[0], [1], [2], [3]],
    "pipeline": [[0, 2], [1, 3], [0, 2], [1, 3]],
    "model": [[0, 1, 2, 3]] * 4,
}


@pytest.mark.parametrize(
    ("topology", "members"),
    [(Topology(tp=2, pp=2, dp=2), TWO_OF_ALL), (Topology(tp=2, pp=2, dp=1), TENSOR_AND_PIPELINE)],
    ids=str,
)
def test_getters(topology, members):
    members = {**members, "tensor_model": members["tensor"]}
    for rank, found in enumerate(run_ranks(getters, topology.world_size, topology)):
        for axis, (place, size, ranks, place_in_group) in found.items():
            assert ranks == members[axis][rank], f"{axis} group of rank {rank}"
            assert size == len(ranks)
            assert place == place_in_group == ranks.index(rank)
