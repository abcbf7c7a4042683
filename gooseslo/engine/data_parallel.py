"""Which way a run keeps its data-parallel copies equal, and in which segments a rank's gradients are reduced."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from gooseslo.engine.model import LocalModel, local_parameters
from gooseslo.parallel.data.buffer import BUCKET_BYTES
from gooseslo.parallel.data.distributed import DistributedOptimizer
from gooseslo.parallel.data.flat import Sharding
from gooseslo.parallel.data.fully_sharded import FullySharded, ShardedStage
from gooseslo.parallel.data.replicated import Replicated
from gooseslo.parallel.data.strategy import DataParallel
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.parallel.pipeline.work import RankWork
from gooseslo.schema.groups import ZeroConfig
from gooseslo.schema.zero import DEEPSPEED


@dataclass(frozen=True, kw_only=True)
class Segments:
    """A rank's parameters in the order of their reduction."""

    parameters: list[dict[str, nn.Parameter]]
    of_stage: dict[int, tuple[int, ...]]
    """Stage -> the segments that its last backward pass completes; what other ranks share is left for the end."""

    def needed_by(self, stage: int) -> Iterator[int]:
        """The segments with weights of a stage: its own, and those of no single stage."""
        others = {number for each, numbers in self.of_stage.items() if each != stage for number in numbers}
        return (number for number in range(len(self.parameters)) if number not in others)


def build_data_parallel(
    model: LocalModel,
    context: ParallelContext,
    zero: ZeroConfig,
    work: RankWork,
    *,
    dtype: torch.dtype,
    layers: str,
) -> DataParallel:
    """The way of `zero.stage`, told by `work` what is complete; collective over all ranks.

    `dtype`: of the weights; `layers`: the name of the blocks in a stage's model.
    """
    segments = segment(model)
    data_parallel: DataParallel
    if zero.backend == DEEPSPEED and context.dp_group is not None:  # who holds a copy alone has nothing to share out
        return _by_deepspeed(model, context, zero, segments, layers=layers)
    if zero.stage == 0:
        data_parallel = Replicated(segments.parameters, dtype=dtype, group=context.dp_group, shared=model.shared)
        reduce_early(segments, data_parallel, work)
        return data_parallel
    shard_group, replica_group = context.shard_groups(zero.shard_size or context.topology.dp)
    if zero.stage >= 2 and shard_group is not None:  # who holds a copy alone has nothing to share out
        return FullySharded(
            model.parameters(),
            [
                ShardedStage(module=stage, blocks=list(stage.model.get_submodule(layers).children()))
                for stage in model.stages.values()
            ],
            dtype=dtype,
            shard_group=shard_group,
            replica_group=replica_group,
            shared=model.shared,
            keep_gathered=zero.stage == 2,
        )
    data_parallel = DistributedOptimizer(
        segments.parameters,
        dtype=dtype,
        sharding=Sharding(shard_group=shard_group, replica_group=replica_group),
        shared=model.shared,
        offload=zero.offload,
    )
    reduce_early(segments, data_parallel, work)
    return data_parallel


def _by_deepspeed(
    model: LocalModel, context: ParallelContext, zero: ZeroConfig, segments: Segments, *, layers: str
) -> DataParallel:
    # It takes a while, and only this back end needs it.
    from gooseslo.engine.deepspeed import DeepSpeedShardedWeights, DeepSpeedZero

    stages = list(model.stages.values())
    if zero.stage == 3:
        (stage,) = stages
        blocks = list(stage.model.get_submodule(layers).children())
        return DeepSpeedShardedWeights(
            model.parameters(), stage, blocks, context=context, shared=model.shared, settings=zero.deepspeed
        )
    return DeepSpeedZero(
        segments.parameters,
        nn.ModuleList(stages) if len(stages) > 1 else stages[0],
        stage=zero.stage,
        context=context,
        shared=model.shared,
        settings=zero.deepspeed,
    )


def called_for(data_parallel: DataParallel) -> nn.Module | None:
    """What has to be called in the place of the one stage, if anything: DeepSpeed's engine."""
    called = getattr(data_parallel, "called", None)
    return called if isinstance(called, nn.Module) else None


def segment(model: LocalModel) -> Segments:
    """Segments so that every rank that holds copies of parameters has them in one alike, and so cuts them alike.

    Equal shards are computed by equal instructions: copies stay equal, bit for bit. First what is shared with other
    ranks, then of each stage what tp ranks hold whole, then what they split.
    """
    names = {parameter: name for name, parameter in model.parameters().items()}
    taken: set[nn.Parameter] = set()
    found: list[dict[str, nn.Parameter]] = []

    def add(parameters: list[nn.Parameter]) -> list[int]:
        fresh = [p for p in dict.fromkeys(parameters) if p not in taken]
        taken.update(fresh)
        first = len(found)
        found.extend({names[p]: p for p in piece} for piece in _pieces(fresh))
        return list(range(first, len(found)))

    for shared in model.shared:
        add([shared.parameters[name] for name in sorted(shared.parameters)])
    in_several = _in_several_stages(model)
    add(in_several)
    of_stage = {}
    for number, stage in model.stages.items():
        # The last layers' gradients are complete first.
        own = list(reversed(local_parameters([stage.model]).values()))
        is_whole = {p: model.placements[names[p]].dim is None for p in own}
        numbers = add([p for p in own if is_whole[p]]) + add([p for p in own if not is_whole[p]])
        of_stage[number] = tuple(numbers)
    return Segments(parameters=found, of_stage=of_stage)


def reduce_early(segments: Segments, data_parallel: DataParallel, work: RankWork) -> None:
    """Let each segment of a stage be summed as soon as the stage's last backward pass has completed it.

    A backward pass that is split gives no sign of single parameters: then when the stage is complete.
    """
    for stage, numbers in segments.of_stage.items():
        for number in numbers:
            _begin_when_complete(list(segments.parameters[number].values()), number, stage, data_parallel, work)

    def complete(stage: int) -> None:
        for number in segments.of_stage[stage]:
            data_parallel.begin_reduce(number)

    def weights_needed(stage: int) -> None:
        for number in segments.needed_by(stage):
            data_parallel.wait_for_weights(number)

    work.complete, work.weights_needed = complete, weights_needed


def _begin_when_complete(
    parameters: list[nn.Parameter], number: int, stage: int, data_parallel: DataParallel, work: RankWork
) -> None:
    # Weak: the collector does not see a cycle that leads through a parameter's hooks.
    begin_reduce, is_last = weakref.WeakMethod(data_parallel.begin_reduce), weakref.WeakMethod(work.is_last)
    total, seen = len(parameters), set[int]()

    def accumulated(parameter: nn.Parameter) -> None:
        ends, begin = is_last(), begin_reduce()
        if ends is not None and begin is not None and ends(stage):
            seen.add(id(parameter))
            if len(seen) == total:
                seen.clear()
                begin(number)

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(accumulated)


def _pieces(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """In order, each of at least a bucket."""
    piece: list[nn.Parameter] = []
    for parameter in parameters:
        piece.append(parameter)
        if sum(p.numel() for p in piece) * 4 >= BUCKET_BYTES:
            yield piece
            piece = []
    if piece:
        yield piece


def _in_several_stages(model: LocalModel) -> list[nn.Parameter]:
    """A weight that two stages of this rank tie: complete when both are."""
    of_stages = [set(local_parameters([stage.model]).values()) for stage in model.stages.values()]
    return [p for p in model.parameters().values() if sum(p in stage for stage in of_stages) > 1]
