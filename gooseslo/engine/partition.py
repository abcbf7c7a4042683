"""`parallel.partition` as layers per stage: what of it needs a model, this device, or a function of the user's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gooseslo.engine.measure import measured_seconds
from gooseslo.engine.memory import RankBytes
from gooseslo.engine.partition_function import partition_by_function
from gooseslo.engine.probe import Workload
from gooseslo.parallel.pipeline.partition import partition_by_rank, partition_by_weight, partition_uniform
from gooseslo.policies.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Partition:
    layers_per_stage: list[int]
    basis: str = ""
    """What it was made by, for the plan; empty where the layers alone say it."""


def make_partition(
    wanted: Any,
    model: Any,
    policy: Policy,
    *,
    num_stages: int,
    workload: Workload,
    device: str,
    rank_bytes: Callable[[], RankBytes],
    cache_dir: Path | None,
) -> Partition:
    """Layers of each stage.

    `model`: whole, on the meta device; `rank_bytes` is asked only where memory is balanced; under `cache_dir` measured
    seconds are kept. ConfigError for a user's function that fails, and where nothing can be measured.
    """
    if isinstance(wanted, list):
        return Partition(layers_per_stage=list(wanted))
    if num_stages == 1 or wanted == "uniform":
        return Partition(layers_per_stage=partition_uniform(workload.num_layers, num_stages))
    if wanted == "time":
        seconds = measured_seconds(workload, device, cache_dir=cache_dir)
        counts = partition_by_weight(seconds.layers, num_stages, first=seconds.first, last=seconds.last)
        layers = " or ".join(f"{1000 * each:.3g}" for each in dict.fromkeys(seconds.layers))
        basis = f"by time: {layers} ms a layer, {1000 * seconds.first:.3g} the embedding, {1000 * seconds.last:.3g} "
        return Partition(layers_per_stage=counts, basis=f"{basis}the head, for a micro-batch on this {device}")

    parameters = [sum(p.numel() for p in block.parameters()) for block in model.get_submodule(policy.layers).children()]
    first, last = (
        sum(p.numel() for name in names for p in model.get_submodule(name).parameters())
        for names in (policy.first, policy.last)
    )
    if ":" in wanted:
        given: dict[str, Any] = {"num_layers": len(parameters), "num_stages": num_stages}
        counts = partition_by_function(wanted, **given, parameters=parameters, first=first, last=last)
        return Partition(layers_per_stage=counts, basis=f"by {wanted}")
    counts = partition_by_weight([float(each) for each in parameters], num_stages, first=first, last=last)
    if wanted == "parameters":
        return Partition(layers_per_stage=counts)
    cost = rank_bytes()
    starts = [counts, partition_uniform(workload.num_layers, num_stages)]
    counts = min(
        (partition_by_rank(start, cost) for start in starts), key=lambda each: sorted(cost(each), reverse=True)
    )
    return Partition(layers_per_stage=counts, basis=f"by memory: {', '.join(map(in_words, cost(counts)))} a rank")


def in_words(num_bytes: float) -> str:
    """In the unit that leaves one to three digits before the point."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes / 2**10:.3g} KiB"
