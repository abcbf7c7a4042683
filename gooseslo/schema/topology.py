"""How many workers a job has, how they divide into tp x pp x dp, and what that leaves of the batch."""

from __future__ import annotations

from gooseslo.errors import Fault
from gooseslo.schema.groups import TrainJob
from gooseslo.schema.schedules import is_file, misfit_of_micro_batches
from gooseslo.schema.sizes import divisors, nearest_multiples, nearest_numbers
from gooseslo.schema.zero import check_shard_size


def num_workers(job: TrainJob, num_devices: int | None) -> int | None:
    """Workers of the job; `num_devices` counts CUDA devices to train on (0: the CPU), None: not known yet.

    None where it hangs on devices that are not known yet.
    """
    if job.launcher.workers is not None:
        return job.launcher.workers
    if job.device == "cpu" or num_devices == 0:
        return job.parallel.tp * job.parallel.pp * (job.parallel.dp or 1)
    return num_devices


def data_parallel_size(job: TrainJob, num_devices: int | None) -> int | None:
    """The dp that was given or that follows from the workers; None where it is not known yet or does not come out."""
    if job.parallel.dp is not None:
        return job.parallel.dp
    workers, model_ranks = num_workers(job, num_devices), job.parallel.tp * job.parallel.pp
    return workers // model_ranks if workers is not None and workers % model_ranks == 0 else None


def num_micro_batches(job: TrainJob, data_parallel: int) -> int:
    """Micro-batches of one rank in one optimizer step; the batch divides (checked)."""
    return job.train.global_batch_size // (job.train.micro_batch_size * data_parallel)


def check_topology(job: TrainJob, num_devices: int | None) -> list[Fault]:
    """Sizes against workers and batch; all sizes must be at least 1."""
    if job.device == "cuda" and num_devices == 0:
        return [Fault(key="device", value="cuda", rule="this machine has no CUDA device", way_out="device=cpu")]
    faults, dp = _check_workers(job, num_devices), data_parallel_size(job, num_devices)
    # Where dp is not known yet, dp = 1 already shows what no dp can mend.
    return faults or _check_batch(job, dp or 1) + check_shard_size(job.zero, dp)


def _check_workers(job: TrainJob, num_devices: int | None) -> list[Fault]:
    workers = num_workers(job, num_devices)
    if workers is None:
        return []
    adopted = job.launcher.name != "local" and job.launcher.workers is not None
    # A worker trains on a CUDA device of its own; ranks that others started may be on other machines.
    limit = num_devices if num_devices and job.device != "cpu" and not adopted else None
    if limit is not None and workers > limit:
        rule = f"more than the {limit} CUDA devices"
        return [Fault(key="launcher.workers", value=workers, rule=rule, way_out="device=cpu")]
    tp, pp, dp = job.parallel.tp, job.parallel.pp, job.parallel.dp
    source = "launcher.workers" if job.launcher.workers is not None else "CUDA devices; launcher.workers is null"
    count = f"{workers} ranks that {job.launcher.name} started" if adopted else f"{workers} workers ({source})"
    key, ranks = f"parallel.tp={tp} parallel.pp={pp}", tp * pp
    if dp is not None:
        key, ranks = f"{key} parallel.dp={dp}", tp * pp * dp
        if ranks == workers:
            return []
        rule = f"{tp} x {pp} x {dp} = {ranks}, but there are {count}"
        ways = _ways_for_workers(job, str(ranks), ranks, limit)
        ways += [f"parallel.dp={workers // (tp * pp)}"] if workers % (tp * pp) == 0 else []
        return [Fault(key=key, rule=rule, way_out=", or ".join(ways))]
    if workers % ranks == 0:
        return []
    if ranks > workers:
        rule = f"{tp} x {pp} = {ranks} > {count}"
    else:
        rule = f"{count}: {workers} is not divisible by {tp} x {pp} = {ranks}"
    ways = _ways_for_workers(job, nearest_multiples(workers, ranks, limit), ranks, limit)
    ways += _nearest_sizes(tp, pp, workers)
    return [Fault(key=key, rule=rule, way_out=f"nearest: {', or '.join(ways)}")]


def _ways_for_workers(job: TrainJob, counts: str, ranks: int, limit: int | None) -> list[str]:
    """Other numbers of workers, on the CPU where the devices are too few for `ranks` workers."""
    if job.launcher.name != "local":
        return [f"{counts} ranks"]
    if limit is None or ranks <= limit:
        return [f"launcher.workers={counts}"]
    return ["device=cpu" if job.launcher.workers is None else f"launcher.workers={ranks} device=cpu"]


def _nearest_sizes(tp: int, pp: int, workers: int) -> list[str]:
    """The nearest tp under this pp, or else pp under this tp, that divides the workers."""
    for key, size, other in (("tp", tp, pp), ("pp", pp, tp)):
        legal = [candidate for candidate in divisors(workers) if workers % (candidate * other) == 0]
        if legal:
            return [f"parallel.{key}={nearest_numbers(size, legal)}"]
    return []


def _check_batch(job: TrainJob, dp: int) -> list[Fault]:
    batch, micro, pp = job.train.global_batch_size, job.train.micro_batch_size, job.parallel.pp
    unit = micro * dp
    if batch % unit:
        rule = f"is not divisible by train.micro_batch_size x dp = {micro} x {dp} = {unit}"
        way_out = f"nearest: train.global_batch_size={nearest_multiples(batch, unit)}"
        if batch % dp == 0:
            way_out += f", or train.micro_batch_size={nearest_numbers(micro, divisors(batch // dp))}"
        return [Fault(key="train.global_batch_size", value=batch, rule=rule, way_out=way_out)]
    schedule = job.parallel.schedule
    if pp == 1 or schedule == "auto":  # `auto` takes a schedule that fits
        return []
    micro_batches = num_micro_batches(job, dp)
    if misfit := misfit_of_micro_batches(schedule, pp=pp, num_micro=micro_batches):
        rule, fitting = misfit
        count = f"{batch} / ({micro} x {dp}) = {micro_batches} micro-batches"
        rule = f"{count} with parallel.pp={pp}: {rule}"
        # A file may be for fewer micro-batches than there are.
        other, sizes = "gpipe", [size for size in divisors(batch // dp) if size <= micro]
        if is_file(schedule):
            other, sizes = "auto", divisors(batch // dp)
        fits = [size for size in sizes if not misfit_of_micro_batches(schedule, pp=pp, num_micro=batch // (dp * size))]
        ways = [f"train.micro_batch_size={fits[-1]}"] if fits else []
        ways += [f"train.global_batch_size={fitting * unit}", f"parallel.schedule={other}"]
        return [Fault(key="train.global_batch_size", value=batch, rule=rule, way_out=", or ".join(ways))]
    return []
