"""What ZeRO's stages ask of the job: the sharing of optimizer state, gradients and weights by data-parallel ranks."""

from __future__ import annotations

from gooseslo.errors import Fault
from gooseslo.schema.groups import TrainJob, ZeroConfig
from gooseslo.schema.quoting import shortened
from gooseslo.schema.schedule_file import FileSchedule, read_schedule
from gooseslo.schema.schedule_table import splits_backward
from gooseslo.schema.schedules import SPLIT_BACKWARD, is_file
from gooseslo.schema.sizes import divisors, nearest_numbers


def check_zero(job: TrainJob) -> list[Fault]:
    """Keys of the group that do not fit one another or the rest of the job, whatever the workers."""
    zero, faults = job.zero, []
    if zero.stage == 0:
        for key, value in (("zero.shard_size", zero.shard_size), ("zero.offload", "true" if zero.offload else None)):
            if value is not None:
                rule = "zero.stage=0 shares nothing out"
                faults.append(Fault(key=key, value=value, rule=rule, way_out="zero.stage=1, or leave it out"))
    if zero.stage >= 2 and zero.offload:
        rule = f"zero.stage={zero.stage} keeps its shards where it computes"
        faults.append(Fault(key="zero.offload", value="true", rule=rule, way_out="zero.stage=1, or leave it out"))
    return faults + _check_schedule(job)


def _check_schedule(job: TrainJob) -> list[Fault]:
    """Stages 2 and 3 gather weights and share gradients out by hooks of the backward pass."""
    schedule = job.parallel.schedule
    if job.zero.stage < 2 or job.parallel.pp == 1 or not _splits_backward(schedule):
        return []
    name = f"the {schedule} schedule" if schedule in SPLIT_BACKWARD else shortened(schedule)
    rule = f"{name} computes weight gradients apart, which zero.stage={job.zero.stage} would not see"
    way_out = "nearest: parallel.schedule=interleaved_1f1b, or zero.stage=1"
    return [Fault(key="parallel.schedule", value=shortened(schedule), rule=rule, way_out=way_out)]


def _splits_backward(schedule: str) -> bool:
    if is_file(schedule):
        found = read_schedule(schedule)
        return isinstance(found, FileSchedule) and splits_backward(found.table)
    return schedule in SPLIT_BACKWARD


def check_shard_size(zero: ZeroConfig, dp: int | None) -> list[Fault]:
    """A number of sharing ranks that does not divide the data-parallel ranks; None: these are not known yet."""
    size = zero.shard_size
    if size is None or dp is None or size < 1 or dp % size == 0:  # below 1: told already
        return []
    rule = f"does not divide the data-parallel size, {dp}"
    way_out = f"nearest: {nearest_numbers(size, divisors(dp))}"
    return [Fault(key="zero.shard_size", value=size, rule=rule, way_out=way_out)]
