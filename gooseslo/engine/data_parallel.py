"""Which way of data parallelism a run takes: what its ZeRO stage says, where there are ranks to share with."""

from __future__ import annotations

from gooseslo.engine.model import LocalModel
from gooseslo.engine.precision import Dtypes
from gooseslo.parallel.data.fully_sharded import FullySharded, ShardedStage
from gooseslo.parallel.data.replicated import Replicated
from gooseslo.parallel.data.strategy import DataParallel
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.schema.groups import ZeroConfig


def build_data_parallel(
    model: LocalModel, zero: ZeroConfig, dtypes: Dtypes, context: ParallelContext, *, layers: str
) -> DataParallel:
    """The strategy over this rank's weights, which may be shared out in place; collective over all ranks.

    `layers`: the name of the blocks in a stage's model.
    """
    shard_group, replica_group = None, context.dp_group
    if zero.stage >= 2:
        shard_group, replica_group = context.data_groups(zero.shard_size or context.topology.dp)
    if shard_group is None:  # a rank that holds a copy alone shares nothing out, whatever the stage
        return Replicated(model.parameters(), dtype=dtypes.weights, group=replica_group, shared=model.shared)
    stages = [
        ShardedStage(module=stage, blocks=list(stage.model.get_submodule(layers).children()))
        for stage in model.stages.values()
    ]
    return FullySharded(
        model.parameters(),
        stages,
        dtype=dtypes.weights,
        shard_group=shard_group,
        replica_group=replica_group,
        shared=model.shared,
        keep_gathered=zero.stage == 2,
    )
