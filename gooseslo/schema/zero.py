"""What ZeRO's stages ask of the job: the sharing of optimizer state, gradients and weights by data-parallel ranks."""

from __future__ import annotations

from importlib.util import find_spec

from gooseslo.errors import Fault
from gooseslo.schema.deepspeed_keys import check_deepspeed_keys
from gooseslo.schema.groups import TrainJob, ZeroConfig
from gooseslo.schema.keys import DEEPSPEED_KEY
from gooseslo.schema.quoting import shortened
from gooseslo.schema.schedule_file import FileSchedule, read_schedule
from gooseslo.schema.schedule_table import splits_backward
from gooseslo.schema.schedules import SPLIT_BACKWARD, is_file, stages_per_rank
from gooseslo.schema.sizes import divisors, nearest_numbers

TORCH, DEEPSPEED = "torch", "deepspeed"
"""Values of zero.backend."""

UNDER_DEEPSPEED = ("auto", "gpipe", "1f1b")
"""Schedules of its stage 1; `auto` chooses among them."""


def check_zero(job: TrainJob) -> list[Fault]:
    """Keys of the group that do not fit one another or the rest of the job, whatever the workers."""
    zero, faults = job.zero, []
    if zero.backend == DEEPSPEED:
        return _check_deepspeed(job)
    if zero.deepspeed:
        rule, way_out = "needs zero.backend=deepspeed", "give it, or leave this out"
        faults.append(Fault(key=DEEPSPEED_KEY, value=shortened(zero.deepspeed), rule=rule, way_out=way_out))
    if zero.stage == 0:
        for key, value in (("zero.shard_size", zero.shard_size), ("zero.offload", "true" if zero.offload else None)):
            if value is not None:
                rule = "zero.stage=0 shares nothing out"
                faults.append(Fault(key=key, value=value, rule=rule, way_out="zero.stage=1, or leave it out"))
    if zero.stage >= 2 and zero.offload:
        rule = f"zero.stage={zero.stage} keeps its shards where it computes"
        faults.append(Fault(key="zero.offload", value="true", rule=rule, way_out="zero.stage=1, or leave it out"))
    return faults + _check_schedule(job)


def _check_deepspeed(job: TrainJob) -> list[Fault]:
    """What this back end does not run; the torch one runs all of it."""
    zero, pp, schedule, precision = job.zero, job.parallel.pp, job.parallel.schedule, job.train.precision
    faults = []

    def refuse(key: str, value: object, rule: str, nearest: str = "") -> None:
        way_out = f"{nearest}zero.backend=torch"
        faults.append(Fault(key=key, value=value, rule=f"zero.backend=deepspeed {rule}", way_out=way_out))

    if pp > 1 and zero.stage != 1:
        refuse("zero.stage", zero.stage, f"runs stage 1 alone where parallel.pp={pp}", "nearest: 1, or ")
    if pp > 1 and schedule not in UNDER_DEEPSPEED:
        refuse("parallel.schedule", shortened(schedule), "runs 1f1b and gpipe", "nearest: 1f1b, or ")
    elif pp > 1 and stages_per_rank(job.parallel) > 1:
        refuse("parallel.virtual_stages", stages_per_rank(job.parallel), "has one stage a rank", "nearest: 1, or ")
    if precision == "fp64" or (precision in ("bf16", "fp16") and job.train.bf16_mode != "autocast"):
        nearest = "" if precision == "fp64" else "train.bf16_mode=autocast, or "
        refuse("train.precision", precision, "has weights in fp32 alone", nearest)
    if zero.shard_size is not None:
        refuse("zero.shard_size", zero.shard_size, "shares out over all data-parallel ranks", "leave it out, or ")
    if zero.offload:
        refuse("zero.offload", "true", "keeps its shards where it computes", "leave it out, or ")
    if find_spec("deepspeed") is None:
        rule = "deepspeed is not installed"
        faults.append(Fault(key="zero.backend", value=DEEPSPEED, rule=rule, way_out="pip install deepspeed"))
    return faults + check_deepspeed_keys(zero.deepspeed, stage=zero.stage)


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
