"""torch's schedules as tables, built without any process: what each rank would compute, in order."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle, _Action

from gooseslo.parallel.pipeline.placement import StagePlacement
from gooseslo.schema.schedule_table import Action, Table

ONE_STAGE: dict[str, type[PipelineScheduleSingle]] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
SEVERAL_STAGES: dict[str, type[PipelineScheduleMulti]] = {
    "looped_bfs": ScheduleLoopedBFS,
    "interleaved_1f1b": ScheduleInterleaved1F1B,
    "interleaved_zb": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
    "dualpipev": ScheduleDualPipeV,
}
"""By how many stages a rank has: one, or a list of them."""


def schedule_over(name: str, placement: StagePlacement, *, num_micro: int, rank: int = 0) -> Any:
    """torch's schedule of a rank over stages that are never run; ValueError where it refuses its micro-batches."""
    stages: list[Any] = [
        SimpleNamespace(
            num_stages=placement.num_stages,
            group_size=placement.pp,
            group_rank=rank,
            stage_index=number,
            is_first=number == 0,
            is_last=number == placement.num_stages - 1,
            submod=None,
        )
        for number in placement.stages_of(rank)
    ]
    options: dict[str, Any] = {"loss_fn": lambda output, target: None, "scale_grads": False}
    if name in ONE_STAGE:
        return ONE_STAGE[name](stages[0], num_micro, **options)
    return SEVERAL_STAGES[name](stages, num_micro, **options)


def table_of(name: str, placement: StagePlacement, *, num_micro: int) -> Table:
    """What each rank of the pipeline computes under one of torch's schedules."""
    if name in ONE_STAGE:  # torch runs them without a table; what it would draw for 1f1b's last stage begins too late
        return tuple(
            tuple(_one_stage(name, rank, pp=placement.pp, num_micro=num_micro)) for rank in range(placement.pp)
        )
    order = schedule_over(name, placement, num_micro=num_micro).pipeline_order
    return tuple(tuple(_computed(order[rank])) for rank in range(placement.pp))


def _one_stage(name: str, stage: int, *, pp: int, num_micro: int) -> Iterator[Action]:
    """gpipe: every forward pass, then every backward pass; 1f1b: in turn, as soon as the first gradient is there."""
    ahead = num_micro if name == "gpipe" else min(num_micro, pp - stage)
    for micro in range(num_micro + ahead):
        if micro >= ahead:
            yield Action(stage, "B", micro - ahead)
        if micro < num_micro:
            yield Action(stage, "F", micro)


def _computed(row: list[_Action | None]) -> list[Action]:
    """The computations of a rank's row, without idle cells and reductions; pairs that overlap one after the other."""
    found = []
    for cell in row:
        for each in () if cell is None else cell.sub_actions or (cell,):
            if each.computation_type.value in ("F", "B", "I", "W"):
                assert each.microbatch_index is not None
                found.append(Action(each.stage_index, each.computation_type.value, each.microbatch_index))
    return found
