"""Running a step's micro-batches: torch's pipeline schedules, or a plain loop where there is one stage.

The loss is divided by the step's tokens before the backward pass and `scale_grads` is off: torch's own scaling would
divide a weight that two stages share twice. Stage metadata is static, so no extra forward pass infers it. Both runners
keep the random streams at the micro-batch being computed, also in the backward pass, where activations may be
recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from gooseslo.parallel.mesh import ParallelContext
from gooseslo.parallel.pipeline.stopwatch import Stopwatch
from gooseslo.parallel.random import RandomStreams

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""(logits of a micro-batch, its labels) -> its share of the step's loss, a scalar."""

SCHEDULES: dict[str, type[ScheduleGPipe] | type[Schedule1F1B]] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Runner(Protocol):
    """Runs one batch of this data-parallel rank, micro-batch by micro-batch; the same tensors on all of its stages.

    Token ids and labels are [samples, S]; `inputs` are what every stage's model is given beside them, such as
    `position_ids`, with the samples as dim 0.
    """

    stopwatch: Stopwatch
    """Runs while this rank computes; reset at the beginning of `train`."""

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
        streams: RandomStreams,
        *,
        first_micro_batch: int,
        num_micro: int,
        device: torch.device,
    ):
        self.module, self.loss, self.streams = module, loss, streams
        self.first_micro_batch, self.num_micro = first_micro_batch, num_micro
        self.stopwatch = Stopwatch(device)

    def train(self, input_ids: Tensor, labels: Tensor, **inputs: Tensor) -> list[Tensor]:
        losses = []
        self.stopwatch.reset()
        for index, (ids, targets, further) in enumerate(self._micro_batches(input_ids, labels, inputs)):
            self.streams.micro_batch = self.first_micro_batch + index
            with self.stopwatch.running():
                loss = self.loss(self.module(ids, **further), targets)
                loss.backward()
            losses.append(loss.detach())
        return losses

    @torch.no_grad()
    def evaluate(self, input_ids: Tensor, labels: Tensor, **inputs: Tensor) -> list[Tensor]:
        micro_batches = self._micro_batches(input_ids, labels, inputs)
        return [self.loss(self.module(ids, **further), targets) for ids, targets, further in micro_batches]

    def _micro_batches(
        self, input_ids: Tensor, labels: Tensor, inputs: dict[str, Tensor]
    ) -> Iterator[tuple[Tensor, Tensor, dict[str, Tensor]]]:
        chunks = {name: tensor.chunk(self.num_micro) for name, tensor in inputs.items()}
        for index, (ids, targets) in enumerate(zip(input_ids.chunk(self.num_micro), labels.chunk(self.num_micro))):
            yield ids, targets, {name: parts[index] for name, parts in chunks.items()}


class StreamedStage(PipelineStage):
    """torch's stage, keeping the random streams at the micro-batch whose forward or backward runs, and its time."""

    def __init__(self, *args: Any, streams: RandomStreams, first_micro_batch: int, stopwatch: Stopwatch, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.streams, self.first_micro_batch, self.stopwatch = streams, first_micro_batch, stopwatch

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self.streams.micro_batch = self.first_micro_batch + fwd_chunk_id
        with self.stopwatch.running():
            output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        if not self.has_backward and self.is_last:
            # Without a backward pass torch would keep every micro-batch's logits until the next step.
            self.fwd_cache[fwd_chunk_id] = ((), [])
        return output

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self.streams.micro_batch = self.first_micro_batch + bwd_chunk_id
        with self.stopwatch.running():
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)


class PipelineRunner:
    """One stage of several, under one of torch's schedules; collective over the pp group."""

    def __init__(
        self,
        module: nn.Module,
        loss: LossFunction,
        streams: RandomStreams,
        *,
        first_micro_batch: int,
        num_micro: int,
        schedule: str,
        context: ParallelContext,
        example: tuple[Tensor, Tensor],
        device: torch.device,
    ):
        """`example`: this stage's input and output of one micro-batch, on the meta device."""
        self.stopwatch = Stopwatch(device)
        stage = StreamedStage(
            module,
            context.at.pp,
            context.topology.pp,
            device,
            input_args=example[0],
            output_args=example[1],
            group=context.pp_group,
            streams=streams,
            first_micro_batch=first_micro_batch,
            stopwatch=self.stopwatch,
        )
        self.is_first, self.is_last = context.is_first_stage, context.is_last_stage
        self.loss = loss
        self.schedule = SCHEDULES[schedule](stage, num_micro, loss_fn=self._timed_loss, scale_grads=False)

    def train(self, input_ids: Tensor, labels: Tensor, **inputs: Tensor) -> list[Tensor]:
        losses: list[Tensor] = []
        self.stopwatch.reset()
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
        return (input_ids,) if self.is_first else ()

    def _keywords(self, inputs: dict[str, Tensor], labels: Tensor, losses: list[Tensor]) -> dict[str, Any]:
        return {**inputs, "target": labels, "losses": losses} if self.is_last else {**inputs}
