"""One optimizer step: micro-batches through the schedule, shared gradients, data-parallel sum, norm, clip, update."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from gooseslo.engine.bad_steps import Skip, bad_micro_batches
from gooseslo.engine.clip import Agreed, agree_on, clip_gradients
from gooseslo.engine.loss_scale import LossScale
from gooseslo.engine.model import LocalModel
from gooseslo.engine.sync_check import SyncCheck
from gooseslo.parallel.collectives import Group, all_reduce_
from gooseslo.parallel.data.strategy import DataParallel
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.parallel.pipeline.callbacks import Callbacks
from gooseslo.parallel.pipeline.schedule import Runner
from gooseslo.parallel.random import RandomStreams
from gooseslo.parallel.tensor.loss import IGNORED, cross_entropy_sum


class StepLoss:
    """A micro-batch's share of the mean over the whole step's predicted tokens; the runner's loss function."""

    def __init__(self, *, vocabulary_start: int, group: Group, counts_correct: bool = False):
        """`group`: over which the logits are split; None where each rank has them whole.

        With `counts_correct`, which wants whole logits, an evaluation also counts the labels that are the largest.
        """
        assert group is None or not counts_correct
        self.vocabulary_start = vocabulary_start
        self.group = group
        self.counts_correct = counts_correct
        self.num_tokens = 1
        self.scale = 1.0
        """Of fp16: what gradients are multiplied by."""
        self.num_correct: Tensor | None = None
        """Counts up while an evaluation runs; None: nothing is counted."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.num_correct is not None:  # an ignored label is no class, so it is never the largest
            self.num_correct += (logits.argmax(dim=-1) == labels).sum()
        loss = cross_entropy_sum(logits, labels, start=self.vocabulary_start, group=self.group) / self.num_tokens
        return loss if self.scale == 1.0 else loss * self.scale


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step reports; plain numbers, equal on all ranks."""

    loss: float
    """Mean over the step's predicted tokens, before the update."""
    grad_norm: float
    """Of the whole model, before clipping, without the loss scale."""
    num_tokens: int
    """Predicted tokens of the step."""
    skip: Skip | None = None
    """The loss or the gradient was not finite, so no weight was changed; what this rank knows of it."""
    loss_scale: float | None = None
    """That of the next step; None but for fp16."""

    @property
    def skipped(self) -> bool:
        return self.skip is not None


class EvalSums(NamedTuple):
    """What one global batch adds to an evaluation; plain numbers, equal on all ranks."""

    loss: float
    """Summed over the predicted labels."""
    num_predicted: int
    num_correct: int | None = None
    """Labels that the model gives the largest logit; None where that is not counted."""


@dataclass(frozen=True, kw_only=True)
class TrainStep:
    """Everything one step needs; every method but `stage_seconds` is collective over all ranks."""

    model: LocalModel
    data_parallel: DataParallel
    runner: Runner
    loss: StepLoss
    context: ParallelContext
    streams: RandomStreams
    callbacks: Callbacks
    device: torch.device
    clip_grad_norm: float
    loss_scale: LossScale = field(default_factory=LossScale)
    sync_check: SyncCheck | None = None
    """None: ranks are not compared."""

    def __call__(
        self,
        input_ids: Tensor,
        labels: Tensor,
        position_ids: Tensor | None = None,
        *,
        step: int,
        update: Callable[[], None],
    ) -> StepResult:
        """Train on this data-parallel rank's [samples, S] batch; `update` runs on clipped gradients.

        Positions that begin again within a sample part it into documents; None: each sample is one.
        """
        losses, num_tokens = self._run(input_ids, labels, position_ids, step=step)
        bad_losses = bad_micro_batches(losses)
        agreed = self._agree(num_bad_losses=len(bad_losses))
        norm = (agreed.norm / self.loss_scale.value).item()
        is_good = agreed.losses_are_finite and agreed.gradients_are_finite and math.isfinite(norm)
        if self.sync_check is not None:
            # What is not finite and changes no weight may differ between ranks.
            self.sync_check.before_update(step + 1, self.model, self.data_parallel, with_gradients=is_good)
        skip = None
        if is_good:
            self._update(agreed.norm, update)
        else:
            skip = Skip(
                is_overflow=agreed.losses_are_finite and self.loss_scale.may_fall,
                bad_losses=bad_losses,
                num_micro_batches=self.runner.num_micro,
                gradients_are_finite=agreed.own_gradients_are_finite,
                at=self.context.at,
            )
            if skip.is_overflow:
                self.loss_scale.fell()
        if self.sync_check is not None:
            self.sync_check.after_update(step + 1, self.model, self.data_parallel)
        if self.callbacks:  # they may look at the weights
            self.data_parallel.wait_for_weights()
        self.callbacks.after_step(step)
        return StepResult(
            loss=self._total(losses) / self.loss.scale,
            grad_norm=norm,
            num_tokens=num_tokens,
            skip=skip,
            loss_scale=self.loss_scale.value if self.loss_scale.is_used else None,
        )

    def gradients(
        self, input_ids: Tensor, labels: Tensor, position_ids: Tensor | None = None, *, step: int
    ) -> tuple[float, int]:
        """Loss and predicted tokens of the step; the gradients of the whole batch, scaled, stand in `.grad`."""
        losses, num_tokens = self._run(input_ids, labels, position_ids, step=step)
        return self._total(losses) / self.loss.scale, num_tokens

    def _run(
        self, input_ids: Tensor, labels: Tensor, position_ids: Tensor | None, *, step: int
    ) -> tuple[list[Tensor], int]:
        """The micro-batches' losses on the last stage, else [], and the step's predicted tokens."""
        self.streams.step = step
        self.model.train()
        num_tokens = self._count(labels)
        # A step without any predicted token has a loss of 0, not 0/0.
        self.loss.num_tokens = max(1, num_tokens)
        self.loss.scale = self.loss_scale.value
        self.data_parallel.zero()
        losses = self.runner.train(input_ids.to(self.device), labels.to(self.device), **self._inputs(position_ids))
        self.data_parallel.reduce()
        return losses, num_tokens

    def evaluate(self, input_ids: Tensor, labels: Tensor, position_ids: Tensor | None = None) -> EvalSums:
        """Loss and predictions of one global batch, without dropout."""
        self.model.train(False)
        self.loss.num_tokens, self.loss.scale = 1, 1.0
        correct = torch.zeros((), dtype=torch.int64, device=self.device) if self.loss.counts_correct else None
        self.loss.num_correct = correct
        losses = self.runner.evaluate(input_ids.to(self.device), labels.to(self.device), **self._inputs(position_ids))
        self.loss.num_correct = None
        num_correct = None if correct is None else int(self._sum(correct).item())
        return EvalSums(self._total(losses), self._count(labels), num_correct)

    def stage_seconds(self) -> list[float]:
        """Compute time of the last step by stage: this rank's at its own stage, 0 at the others. Not collective."""
        seconds = [0.0] * self.context.topology.pp
        seconds[self.context.at.pp] = self.runner.stopwatch.seconds()
        return seconds

    def norm(self) -> Tensor:
        """The gradient norm of the whole model."""
        return self._agree().norm / self.loss_scale.value

    def _agree(self, *, num_bad_losses: int = 0) -> Agreed:
        stepped, counted = self.data_parallel.stepped, self.model.counted
        return agree_on(
            counted=[part.parameter for part in stepped if part.name in counted],
            copies=[part.parameter for part in stepped if part.name not in counted],
            num_bad_losses=num_bad_losses,
            groups=(self.data_parallel.shard_group, self.context.model_group),
            replicas=self.context.dp_group,
            device=self.device,
        )

    def _update(self, scaled_norm: Tensor, update: Callable[[], None]) -> None:
        scale = self.loss_scale.value
        clip_gradients(self.data_parallel.flats, scaled_norm / scale, self.clip_grad_norm, scale=scale)
        update()
        self.data_parallel.write_back()
        self.loss_scale.passed()

    def _inputs(self, position_ids: Tensor | None) -> dict[str, Tensor]:
        return {} if position_ids is None else {"position_ids": position_ids.to(self.device)}

    def _count(self, labels: Tensor) -> int:
        """Predicted tokens over all data-parallel ranks."""
        count = (labels != IGNORED).sum().to(self.device)
        return int(all_reduce_(count, self.context.dp_group).item())

    def _total(self, losses: list[Tensor]) -> float:
        """Sum over micro-batches and data-parallel ranks, known on the last stage, told to all."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for loss in losses:
            total += loss
        return self._sum(total).item()

    def _sum(self, value: Tensor) -> Tensor:
        """In place, over data-parallel ranks and stages: what only a last stage knows."""
        all_reduce_(value, self.context.dp_group)
        return all_reduce_(value, self.context.pp_group)
