"""The training loop: steps, evaluations and saves, from wherever the run stands to where it stops."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist

from gooseslo.data.order.loader import Batch, EvalLoader, TrainLoader
from gooseslo.engine import bad_steps
from gooseslo.engine.metrics import TrainRecord, eval_record, peak_memory_bytes, save_record, warning_record
from gooseslo.engine.optimizer import set_lr
from gooseslo.engine.requests import Requests
from gooseslo.engine.step import StepResult, TrainStep


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far a run has come; saved in every checkpoint's `state.json`."""

    step: int = 0
    """Steps done, skipped ones included."""
    updates: int = 0
    """Optimizer updates done: what the LR schedule counts."""
    consumed_samples: int = 0
    consumed_tokens: int = 0
    skipped: int = 0
    """Steps done without an update."""
    bad_in_a_row: int = 0
    """The last steps without a finite loss and gradient; overflows of fp16 among them are not counted."""


class Observer(Protocol):
    """Is told of each step, evaluation and save, as a record of `metrics.jsonl`."""

    def __call__(self, record: dict[str, object]) -> None: ...

    def close(self) -> None:
        """Give files and terminal back."""


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """When the loop evaluates, saves and stops; in steps."""

    last_step: int
    eval_every: int
    save_every: int
    save_at_end: bool
    max_skipped_steps: int
    """So many bad ones in a row end the run: no later one will be good."""


class Trainer:
    """One rank's training; every method is collective over all ranks."""

    def __init__(
        self,
        *,
        train_step: TrainStep,
        optimizer: torch.optim.Optimizer,
        lr_at: Callable[[int], float],
        train_loader: TrainLoader,
        eval_loader: EvalLoader | None,
        settings: LoopSettings,
        save: Callable[[Position], Path],
        describe: Callable[[TrainRecord], dict[str, object]],
        observers: list[Observer],
        requests: Requests | None = None,
        part: Callable[[int], None] = lambda stop_signal: None,
    ):
        """`save` writes a step folder; `describe` completes a train record; `observers` is empty but on rank 0.

        `requests`: what may be asked of the run from outside; None: nothing. `part` is called after the last step,
        with the signal that all ranks stop on, before the observers are closed: no rank waits for that.
        """
        self.train_step = train_step
        self.optimizer = optimizer
        self.lr_at = lr_at
        self.train_loader, self.eval_loader = train_loader, eval_loader
        self.settings = settings
        self.save, self.describe, self.observers = save, describe, observers
        self.requests = requests or Requests()
        self._part = part
        self.stop_signal = 0
        """The signal on which all ranks stop together; 0: none."""
        self._save_asked = False

    def fit(self, position: Position) -> Position:
        """Train from `position` to the last step, or to where the run is asked to stop; gives where it then stands."""
        with contextlib.ExitStack() as stack:
            for observer in self.observers:
                stack.callback(observer.close)
            stack.callback(self.train_loader.close)
            stack.callback(self.train_step.callbacks.close)
            position = self._fit(position)
            self._part(self.stop_signal)
            return position

    def _fit(self, position: Position) -> Position:
        settings = self.settings
        while position.step < settings.last_step and not self.stop_signal:
            bad_before = position.bad_in_a_row
            position = self._one_step(position)
            if position.bad_in_a_row > bad_before and position.bad_in_a_row >= settings.max_skipped_steps:
                self._save(position)
                raise bad_steps.too_many(position.bad_in_a_row, step=position.step, limit=settings.max_skipped_steps)
            at_end = position.step == settings.last_step
            save_first = self._save_asked or self.stop_signal != 0  # who asks may not wait for an evaluation
            if save_first:
                self._save(position)
            evaluates = at_end or _is_due(position.step, settings.eval_every)
            if self.eval_loader is not None and evaluates and not self.stop_signal:
                self._evaluate(position, "valid", self.eval_loader)
            due = (at_end and settings.save_at_end) or _is_due(position.step, settings.save_every)
            if (due or self.stop_signal) and not save_first:
                self._save(position)
        return position

    def _one_step(self, position: Position) -> Position:
        """One global batch, whose update is skipped where its loss or gradient is not finite."""
        began = time.perf_counter()
        batch = self.train_loader.batch(position.consumed_samples)
        waited = time.perf_counter() - began
        lr = self.lr_at(position.updates)
        set_lr(self.optimizer, lr)
        result = self.train_step(
            batch.input_ids, batch.labels, batch.position_ids, step=position.step, update=self.optimizer.step
        )
        seconds = time.perf_counter() - began
        before, is_overflow = position, result.skip is not None and result.skip.is_overflow
        bad_in_a_row = position.bad_in_a_row + (not is_overflow) if result.skipped else 0
        position = replace(
            position,
            step=position.step + 1,
            updates=position.updates + (not result.skipped),
            consumed_samples=position.consumed_samples + self.train_loader.global_batch_size,
            consumed_tokens=position.consumed_tokens + result.num_tokens,
            skipped=position.skipped + result.skipped,
            bad_in_a_row=bad_in_a_row,
        )
        self._report(position, result, lr=lr, seconds=seconds, waited=waited)
        if bad_in_a_row > before.bad_in_a_row:
            self._tell_of_bad_step(before, result, batch)
        return position

    def _tell_of_bad_step(self, position: Position, result: StepResult, batch: Batch) -> None:
        assert result.skip is not None
        text = bad_steps.describe(
            result.skip, batch.sample_ids, step=position.step + 1, first_position=position.consumed_samples
        )
        if self.observers:
            logging.getLogger(__name__).warning(text)
        self._observe(lambda: warning_record(text))

    def _report(self, position: Position, result: StepResult, *, lr: float, seconds: float, waited: float) -> None:
        memory_bytes = peak_memory_bytes(self.train_step.device)
        stage_seconds = self.train_step.stage_seconds()
        largest = self._largest([memory_bytes, *self.requests.pending(), *stage_seconds])
        largest_memory, stop_signal, save_asked, *stage_seconds = largest
        self.stop_signal, self._save_asked = int(stop_signal), save_asked > 0
        record = TrainRecord(
            step=position.step,
            loss=result.loss,
            lr=lr,
            grad_norm=result.grad_norm,
            tokens=result.num_tokens,
            consumed_samples=position.consumed_samples,
            consumed_tokens=position.consumed_tokens,
            step_seconds=seconds,
            data_wait_seconds=waited,
            memory_bytes=int(largest_memory),
            skipped=result.skipped,
            overflow=result.skip is not None and result.skip.is_overflow,
            loss_scale=result.loss_scale,
            stage_seconds=tuple(stage_seconds),
        )
        self._observe(lambda: self.describe(record))

    def _evaluate(self, position: Position, split: str, loader: EvalLoader) -> None:
        """Means over the split's predicted labels, each sample once; a signal ends it without a result."""
        total, num_predicted, num_correct = 0.0, 0, None
        for batch in loader:
            sums = self.train_step.evaluate(batch.input_ids, batch.labels, batch.position_ids)
            total, num_predicted = total + sums.loss, num_predicted + sums.num_predicted
            if sums.num_correct is not None:
                num_correct = (num_correct or 0) + sums.num_correct
            self._look_for_a_signal()
            if self.stop_signal:
                return
        if not num_predicted:
            self._observe(
                lambda: warning_record(f"step {position.step}: {split}: nothing is predicted, so it has no loss")
            )
            return
        loss, accuracy = total / num_predicted, None if num_correct is None else num_correct / num_predicted
        samples = loader.num_samples
        self._observe(
            lambda: eval_record(step=position.step, split=split, loss=loss, samples=samples, accuracy=accuracy)
        )

    def _save(self, position: Position) -> None:
        folder = self.save(position)
        if self._save_asked:
            self.requests.saved()
        self._look_for_a_signal()  # one that came meanwhile is content with what was just saved
        self._observe(lambda: save_record(step=position.step, path=folder))

    def _look_for_a_signal(self) -> None:
        self.stop_signal = self.stop_signal or int(self._largest([self.requests.pending()[0]])[0])

    def _observe(self, record: Callable[[], dict[str, object]]) -> None:
        if self.observers:
            line = record()
            for observer in self.observers:
                observer(line)

    def _largest(self, values: Sequence[float]) -> list[float]:
        """The maximum of each number over all ranks, in one collective; counts are exact up to 2^53."""
        if not dist.is_initialized():
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.train_step.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.tolist()


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
