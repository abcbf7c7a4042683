"""The tp x pp x dp layout of ranks and its process groups, with the `mpu` protocol that DeepSpeed and Megatron know.

Rank order: tp varies fastest, then dp, then pp, so that tensor-parallel ranks are neighbours on one machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import product

import torch.distributed as dist

from gooseslo.errors import TopologyError


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """A rank's place on each mesh axis."""

    tp: int = 0
    pp: int = 0
    dp: int = 0

    def __str__(self) -> str:
        return f"tp={self.tp} pp={self.pp} dp={self.dp}"


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The sizes of the mesh axes; arithmetic only, no process needed."""

    tp: int = 1
    pp: int = 1
    dp: int = 1

    def __post_init__(self) -> None:
        for axis in ("tp", "pp", "dp"):
            if getattr(self, axis) < 1:
                raise TopologyError(f"parallel.{axis}={getattr(self, axis)}: must be at least 1")

    @property
    def world_size(self) -> int:
        return self.tp * self.pp * self.dp

    def coordinates(self, rank: int) -> Coordinates:
        """Where global rank `rank` sits."""
        return Coordinates(tp=rank % self.tp, dp=rank // self.tp % self.dp, pp=rank // (self.tp * self.dp) % self.pp)

    def rank(self, *, tp: int, pp: int, dp: int) -> int:
        """The global rank at the given coordinates; the inverse of `coordinates`."""
        return (pp * self.dp + dp) * self.tp + tp


class ParallelContext:
    """One rank's groups: tensor, pipeline, data, model (tensor x pipeline), and the pair of pipeline ends.

    Collective to construct on every rank of the default process group; `timeout` bounds the collectives of its groups
    (None: torch's default). The group of an axis of one rank is None, which the collectives of this package read as
    "alone"; the mpu getters give a real group of one, since torch reads None as the whole world.
    """

    def __init__(self, topology: Topology, rank: int = 0, *, timeout: timedelta | None = None):
        self.topology = topology
        self.timeout = timeout
        self._alone: dist.ProcessGroup | None = None
        self.rank = rank
        self.at = topology.coordinates(rank)
        sizes: dict[str, Sequence[int]] = {axis: range(getattr(topology, axis)) for axis in ("tp", "pp", "dp")}
        self.tp_group, self.tp_ranks = self._group_over(("tp",), sizes)
        self.dp_group, self.dp_ranks = self._group_over(("dp",), sizes)
        self.pp_group, self.pp_ranks = self._group_over(("pp",), sizes)
        self.model_group, self.model_ranks = self._group_over(("tp", "pp"), sizes)
        self.ends_group, self.ends_ranks = self._group_over(("pp",), {**sizes, "pp": sorted({0, topology.pp - 1})})
        self._subgroups: list[dist.ProcessGroup] = []

    def _group_over(
        self, axes: tuple[str, ...], sizes: dict[str, Sequence[int]]
    ) -> tuple[dist.ProcessGroup | None, list[int]]:
        """The group of ranks that differ from this one along `axes` only; every rank makes all groups, in order."""
        others = [axis for axis in ("pp", "dp", "tp") if axis not in axes]
        mine: tuple[dist.ProcessGroup | None, list[int]] = (None, [self.rank])
        for fixed in product(*(range(getattr(self.topology, axis)) for axis in others)):
            along = product(*(sizes[axis] for axis in ("pp", "dp", "tp") if axis in axes))
            keys = [axis for axis in ("pp", "dp", "tp") if axis in axes]
            ranks = [self.topology.rank(**dict(zip(others, fixed)), **dict(zip(keys, place))) for place in along]
            if len(ranks) == 1:
                continue
            group = dist.new_group(ranks, timeout=self.timeout)
            if self.rank in ranks:
                mine = (group, ranks)
        return mine

    def neighbours_group(self, size: int) -> dist.ProcessGroup | None:
        """The group of `size` neighbouring tp ranks that this rank is in; collective on every rank."""
        if size == 1:
            return None
        mine = None
        for first in range(0, self.topology.world_size, size):
            ranks = list(range(first, first + size))  # tp is the fastest axis
            group = dist.new_group(ranks, timeout=self.timeout)
            if self.rank in ranks:
                mine = group
        assert mine is not None and self.topology.tp % size == 0
        self._subgroups.append(mine)
        return mine

    def shard_groups(self, size: int) -> tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]:
        """The `size` neighbouring dp ranks that this rank shares a copy with, and the ranks with the same share.

        `size` divides dp. Collective on every rank.
        """
        topology = self.topology
        assert topology.dp % size == 0
        if size in (1, topology.dp):
            return (self.dp_group, None) if size > 1 else (None, self.dp_group)
        blocks = [range(first, first + size) for first in range(0, topology.dp, size)]
        strides = [range(first, topology.dp, size) for first in range(size)]
        mine: list[dist.ProcessGroup] = []
        for dps in (blocks, strides):
            for pp, tp, along in product(range(topology.pp), range(topology.tp), dps):
                ranks = [topology.rank(tp=tp, pp=pp, dp=dp) for dp in along]
                group = dist.new_group(ranks, timeout=self.timeout)
                if self.rank in ranks:
                    mine.append(group)
        self._subgroups += mine
        return mine[0], mine[1]

    @property
    def is_first_stage(self) -> bool:
        return self.at.pp == 0

    @property
    def is_last_stage(self) -> bool:
        return self.at.pp == self.topology.pp - 1

    def close(self) -> None:
        """Free the groups; collective on every rank."""
        groups = (self.tp_group, self.dp_group, self.pp_group, self.model_group, self.ends_group, self._alone)
        for group in (*groups, *self._subgroups):
            if group is not None:
                dist.destroy_process_group(group)

    def _given(self, group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
        """`group`, or a group of this rank alone; None only without torch.distributed."""
        if group is None and self._alone is None and dist.is_initialized():
            self._alone = dist.new_group([self.rank], timeout=self.timeout, use_local_synchronization=True)
        return group or self._alone

    # The mpu protocol (Megatron's names; DeepSpeed's `mpu=` argument takes this object).

    def get_tensor_model_parallel_rank(self) -> int:
        return self.at.tp

    def get_tensor_model_parallel_world_size(self) -> int:
        return self.topology.tp

    def get_tensor_model_parallel_group(self) -> dist.ProcessGroup | None:
        return self._given(self.tp_group)

    get_tensor_parallel_rank = get_tensor_model_parallel_rank
    get_tensor_parallel_world_size = get_tensor_model_parallel_world_size
    get_tensor_parallel_group = get_tensor_model_parallel_group

    def get_pipeline_parallel_rank(self) -> int:
        return self.at.pp

    def get_pipeline_parallel_world_size(self) -> int:
        return self.topology.pp

    def get_pipeline_parallel_group(self) -> dist.ProcessGroup | None:
        return self._given(self.pp_group)

    def get_data_parallel_rank(self) -> int:
        return self.at.dp

    def get_data_parallel_world_size(self) -> int:
        return self.topology.dp

    def get_data_parallel_group(self) -> dist.ProcessGroup | None:
        return self._given(self.dp_group)

    def get_model_parallel_rank(self) -> int:
        """Rank within tensor x pipeline."""
        return self.at.pp * self.topology.tp + self.at.tp

    def get_model_parallel_world_size(self) -> int:
        return self.topology.tp * self.topology.pp

    def get_model_parallel_group(self) -> dist.ProcessGroup | None:
        """Tensor x pipeline: over this group DeepSpeed sums its gradient norm."""
        return self._given(self.model_group)
