"""How a run is spread over its pipeline: the schedule, the stages of each rank, the layers of each stage, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gooseslo.engine.child import ChildError, in_child
from gooseslo.engine.memory import RankBytes, parameter_bytes
from gooseslo.engine.partition import Partition, in_words, make_partition
from gooseslo.engine.probe import Workload
from gooseslo.errors import ConfigError
from gooseslo.parallel.pipeline.choice import SimulatedSchedule, ranked, reason
from gooseslo.parallel.pipeline.placement import StagePlacement
from gooseslo.parallel.pipeline.tables import table_of
from gooseslo.policies.policy import Policy
from gooseslo.schema.groups import TrainJob
from gooseslo.schema.schedule_file import read_schedule
from gooseslo.schema.schedule_table import Table
from gooseslo.schema.schedules import RULES, candidates, is_file, stages_per_rank
from gooseslo.schema.zero import DEEPSPEED

_ROOM = 0.9
"""Share of a device's memory that an estimate may fill: kernels, messages and fragments take the rest."""
_CHILD_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class PipelineLayout:
    schedule: str
    placement: StagePlacement
    table: Table | None
    """What each rank computes, where the schedule is a file."""
    partition: Partition
    reason: str = ""
    """Why `auto` took this schedule."""


class LayoutMaker:
    """Of one job and its model, `whole` on the meta device."""

    def __init__(
        self, job: TrainJob, whole: Any, policy: Policy, workload: Workload, *, dp: int, device: str, num_micro: int
    ):
        self._job, self._whole, self._policy, self._workload = job, whole, policy, workload
        self._device, self._num_micro = device, num_micro
        sharing = job.zero.shard_size or dp
        self._parameter = parameter_bytes(workload.dtypes, job.optimizer, job.zero, sharing=sharing)

    def make(self, *, cache_dir: Path | None) -> PipelineLayout:
        """ConfigError where a partition cannot be made; what is measured is kept under `cache_dir`."""
        parallel = self._job.parallel
        if parallel.pp > 1 and parallel.schedule == "auto":
            return self._choose(cache_dir)
        kept, is_v = None, False
        if parallel.pp == 1:
            table: Table = table_of("1f1b", StagePlacement(pp=1), num_micro=self._num_micro)
        elif is_file(parallel.schedule):
            found = read_schedule(parallel.schedule)
            if isinstance(found, list):  # changed since it was checked
                raise ConfigError(found)
            table = kept = found.table
            is_v = found.is_v
        else:
            is_v = RULES[parallel.schedule].is_v
        placement = StagePlacement(pp=parallel.pp, virtual_stages=stages_per_rank(parallel), is_v=is_v)
        if parallel.pp > 1 and kept is None:
            table = table_of(parallel.schedule, placement, num_micro=self._num_micro)
        partition = self._partition(placement, table, cache_dir)
        return PipelineLayout(schedule=parallel.schedule, placement=placement, table=kept, partition=partition)

    def _choose(self, cache_dir: Path | None) -> PipelineLayout:
        """The best of the schedules whose fullest rank fits into its device; where none does, the leanest."""
        job, sizes = self._job, {"num_layers": self._workload.num_layers, "num_micro": self._num_micro}
        found = candidates(job.parallel, zero_stage=job.zero.stage, by_deepspeed=job.zero.backend == DEEPSPEED, **sizes)
        schedules = ranked(found, pp=job.parallel.pp, num_micro=self._num_micro)
        room = _device_bytes() if self._device == "cuda" else None
        chosen, further = schedules[0], ""
        if room is not None:
            chosen, further = self._fitting(schedules, _ROOM * room, cache_dir)
        return PipelineLayout(
            schedule=chosen.name,
            placement=chosen.placement,
            table=None,
            partition=self._partition(chosen.placement, chosen.table, cache_dir),
            reason=reason(chosen, schedules) + further,
        )

    def _fitting(
        self, schedules: Sequence[SimulatedSchedule], room: float, cache_dir: Path | None
    ) -> tuple[SimulatedSchedule, str]:
        """The first schedule that fits into `room` bytes, and what it was about those before it."""
        needed = {}
        for schedule in schedules:
            partition = self._partition(schedule.placement, schedule.table, cache_dir)
            cost = self._rank_bytes(schedule.placement, schedule.table)
            needed[schedule.name] = max(cost(partition.layers_per_stage))
            if needed[schedule.name] <= room:
                before = [f"{name} {in_words(size)}" for name, size in list(needed.items())[:-1]]
                words = f"; too large for {in_words(room)} of the device: {', '.join(before)}" if before else ""
                return schedule, words
        leanest = min(schedules, key=lambda each: needed[each.name])
        words = f"; the leanest, of {in_words(needed[leanest.name])}: none fits into {in_words(room)} of the device"
        return leanest, words

    def _partition(self, placement: StagePlacement, table: Table, cache_dir: Path | None) -> Partition:
        return make_partition(
            self._job.parallel.partition,
            self._whole,
            self._policy,
            num_stages=placement.num_stages,
            workload=self._workload,
            device=self._device,
            rank_bytes=lambda: self._rank_bytes(placement, table),
            cache_dir=cache_dir,
        )

    def _rank_bytes(self, placement: StagePlacement, table: Table) -> RankBytes:
        whole, policy, workload = self._whole, self._policy, self._workload
        return RankBytes(whole, policy, workload, placement, table, parameter=self._parameter)


def _device_bytes() -> float | None:
    """Memory of the CUDA device with the least of it, asked in a process of its own; None where it cannot be asked."""
    try:
        return in_child(_total_memory, seconds=_CHILD_SECONDS)
    except ChildError:
        return None


def _total_memory() -> float:
    count = torch.cuda.device_count()
    return float(min(torch.cuda.get_device_properties(index).total_memory for index in range(count)))
