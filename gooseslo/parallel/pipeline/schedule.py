"""Running a step's micro-batches: torch's pipeline schedules, or a plain loop where there is one stage.

The loss is divided by the step's tokens before the backward pass and `scale_grads` is off: torch's own scaling would
divide a weight that two stages share twice. Stage metadata is static, so no extra forward pass infers it. Both runners
keep the random streams at the micro-batch being computed, also in the backward pass, where activations may be
recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

from gooseslo.errors import TopologyError
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.parallel.pipeline.placement import StagePlacement
from gooseslo.parallel.pipeline.stopwatch import Stopwatch
from gooseslo.parallel.pipeline.tables import ONE_STAGE, SEVERAL_STAGES, table_of
from gooseslo.parallel.pipeline.work import RankWork
from gooseslo.schema.schedule_table import Table, splits_backward
from gooseslo.schema.schedules import SPLIT_BACKWARD

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""(logits of a micro-batch, its labels) -> its share of the step's loss, a scalar."""


class Runner(Protocol):
    """Runs one batch of this data-parallel rank, micro-batch by micro-batch; the same tensors on all of its stages.

    Token ids and labels are [samples, S]; `inputs` are what every stage's model is given beside them, such as
    `position_ids`, with the samples as dim 0.
    """

    stopwatch: Stopwatch
    """Runs while this rank computes; reset at the beginning of `train`."""
    num_micro: int
    """Micro-batches of this data-parallel rank."""

    def train(self, input_ids: Tensor, labels: Tensor, **inputs: Tensor) -> list[Tensor]:
        """Forward and backward, gradients added to `.grad`; the micro-batches' losses on the last stage, else []."""

    def evaluate(self, input_ids: Tensor, labels: Tensor, **inputs: Tensor) -> list[Tensor]:
        """Forward alone; the micro-batches' losses on the last stage, else []."""


class SequentialRunner:
    """One stage: forward and backward of each micro-batch in turn."""

    def __init__(
        self,
        module: nn.Module,
        loss: LossFunction,
        work: RankWork,
        *,
        num_micro: int,
    ):
        self.module, self.loss, self.work, self.num_micro = module, loss, work, num_micro
        self.stopwatch = work.stopwatch

    def train(self, input_ids: Tensor, labels: Tensor, **inputs: Tensor) -> list[Tensor]:
        losses = []
        self.work.begin()
        for index, (ids, targets, further) in enumerate(self._micro_batches(input_ids, labels, inputs)):
            with self.work.running("forward", index, 0):
                loss = self.loss(self.module(ids, **further), targets)
            with self.work.running("backward", index, 0):
                loss.backward()
            self.work.gradients_done(0)
            losses.append(loss.detach())
        return losses

    @torch.no_grad()
    def evaluate(self, input_ids: Tensor, labels: Tensor, **inputs: Tensor) -> list[Tensor]:
        losses = []
        for index, (ids, targets, further) in enumerate(self._micro_batches(input_ids, labels, inputs)):
            with self.work.running("forward", index, 0):
                losses.append(self.loss(self.module(ids, **further), targets))
        return losses

    def _micro_batches(
        self, input_ids: Tensor, labels: Tensor, inputs: dict[str, Tensor]
    ) -> Iterator[tuple[Tensor, Tensor, dict[str, Tensor]]]:
        chunks = {name: tensor.chunk(self.num_micro) for name, tensor in inputs.items()}
        for index, (ids, targets) in enumerate(zip(input_ids.chunk(self.num_micro), labels.chunk(self.num_micro))):
            yield ids, targets, {name: parts[index] for name, parts in chunks.items()}


class WorkingStage(PipelineStage):
    """torch's stage, whose computations are this rank's work."""

    def __init__(self, *args: Any, work: RankWork, splits_backward: bool, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.work, self.splits_backward = work, splits_backward

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self.work.running("forward", fwd_chunk_id, self.stage_index):
            output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        if not self.has_backward and self.is_last:
            # Without a backward pass torch would keep every micro-batch's logits until the next step.
            self.fwd_cache[fwd_chunk_id] = ((), [])
        return output

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward_maybe_with_nosync(*args, **kwargs)
        # A split backward pass detaches the output in place, which a view (GPT-2's last reshape) does not allow.
        detached = self.splits_backward and self.has_backward and not self.is_last
        return output.clone() if detached and output._is_view() else output

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        if not self.has_backward:
            return None
        with self.work.running("backward", bwd_chunk_id, self.stage_index):
            result = super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        if kwargs.get("full_backward", True):
            self.work.gradients_done(self.stage_index)
        return result

    # torch's runtime hands gradients from stage to stage of one rank in an evaluation too, where there are none.

    def get_local_bwd_output(self, mb_index: int) -> Any:
        return super().get_local_bwd_output(mb_index) if self.has_backward else None

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """What a schedule that splits the backward pass puts off: the weights' gradients."""
        if not self.has_backward:
            return None
        with self.work.running("backward_weight", bwd_chunk_id, self.stage_index):
            result = super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)
        self.work.gradients_done(self.stage_index)
        return result


class _Gradients(dict[tuple[int, int], list[dist.Work]]):
    """What torch's runtime is receiving, by stage and micro-batch; it takes an entry when it begins to wait for it."""

    def __init__(self, work: RankWork):
        super().__init__()
        self._work = work

    def pop(self, key: tuple[int, int], *default: Any) -> Any:
        stage, micro_batch = key
        self._work.gradient_awaited(micro_batch, stage)
        return super().pop(key, *default)


def load_table(schedule: _PipelineScheduleRuntime, table: Table) -> None:
    """Give torch's runtime a table to run; it adds the messages."""
    schedule.pipeline_order = {rank: [_Action.from_str(str(each)) for each in row] for rank, row in enumerate(table)}
    schedule._prepare_schedule_with_comms(schedule.pipeline_order)


@dataclass(frozen=True, kw_only=True)
class RankStage:
    """A stage of this rank, and its input and output of one micro-batch on the meta device."""

    number: int
    module: nn.Module
    example: tuple[Tensor, Tensor]


class PipelineRunner:
    """A rank's stages, under one of torch's schedules; collective over the pp group."""

    def __init__(
        self,
        stages: Sequence[RankStage],
        loss: LossFunction,
        work: RankWork,
        *,
        num_micro: int,
        schedule: str,
        num_stages: int,
        micro_shape: tuple[int, int],
        context: ParallelContext,
        device: torch.device,
        table: Table | None = None,
    ):
        """`num_stages`: of the whole pipeline; `micro_shape`: the samples and tokens that the stages' buffers hold;
        `table`: what each rank computes, where `schedule` is no name.
        """
        self.shape = (num_micro * micro_shape[0], micro_shape[1])
        self.work, self.stopwatch, self.num_micro = work, work.stopwatch, num_micro
        torch_stages: list[Any] = [
            WorkingStage(
                stage.module,
                stage.number,
                num_stages,
                device,
                input_args=stage.example[0],
                output_args=stage.example[1],
                group=context.pp_group,
                work=work,
                splits_backward=schedule in SPLIT_BACKWARD if table is None else splits_backward(table),
            )
            for stage in stages
        ]
        self.is_first = any(stage.is_first for stage in torch_stages)
        self.is_last = any(stage.is_last for stage in torch_stages)
        self.loss = loss
        if table is None and schedule in ONE_STAGE:
            # torch's own classes wait for each message before the next computation; its runtime does not.
            table = table_of(schedule, StagePlacement(pp=num_stages), num_micro=num_micro)
        make: Any = _PipelineScheduleRuntime if table is not None else SEVERAL_STAGES[schedule]
        self.schedule = make(torch_stages, num_micro, loss_fn=self._timed_loss, scale_grads=False)
        if table is not None:
            load_table(self.schedule, table)
        self.schedule.bwd_recv_ops = _Gradients(work)

    def train(self, input_ids: Tensor, labels: Tensor, **inputs: Tensor) -> list[Tensor]:
        losses: list[Tensor] = []
        self.work.begin()
        self.schedule.step(*self._inputs(input_ids), **self._keywords(inputs, labels, losses), return_outputs=False)
        return [loss.detach() for loss in losses]

    @torch.no_grad()
    def evaluate(self, input_ids: Tensor, labels: Tensor, **inputs: Tensor) -> list[Tensor]:
        losses: list[Tensor] = []
        self.schedule.eval(*self._inputs(input_ids), **self._keywords(inputs, labels, losses), return_outputs=False)
        return losses

    def _timed_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        with self.stopwatch.running():
            return self.loss(logits, labels)

    def _inputs(self, input_ids: Tensor) -> tuple[Tensor, ...]:
        if input_ids.shape != self.shape:  # torch would cut what a stage receives to its buffers, and say nothing
            given, made = ("{} samples of {} tokens".format(*shape) for shape in (input_ids.shape, self.shape))
            raise TopologyError(f"a batch of {given}: the stages of this pipeline exchange {made}")
        return (input_ids,) if self.is_first else ()

    def _keywords(self, inputs: dict[str, Tensor], labels: Tensor, losses: list[Tensor]) -> dict[str, Any]:
        return {**inputs, "target": labels, "losses": losses} if self.is_last else {**inputs}
