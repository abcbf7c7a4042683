"""What is told when a rank's stage computes: users' own classes, and whatever else wants to know."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence


class PipelineCallback:
    """Does nothing; subclasses override what they want to know.

    All are called on every rank for its own stages, around the computation alone: what a rank waits for is outside.
    `micro_batch` counts over all data-parallel ranks of a step, `stage` over the pipeline. On CUDA the work is only
    queued in between. What a method raises ends the run.
    """

    def before(self, kind: str, micro_batch: int, stage: int) -> None:
        """Of any kind (see KINDS): calls the method of that kind."""
        getattr(self, f"before_{kind}")(micro_batch, stage)

    def after(self, kind: str, micro_batch: int, stage: int) -> None:
        """Of any kind: calls the method of that kind."""
        getattr(self, f"after_{kind}")(micro_batch, stage)

    def after_step(self, step: int) -> None:
        """The weights have been updated, or the update was skipped."""

    def close(self) -> None:
        """The run ends."""

    def before_forward(self, micro_batch: int, stage: int) -> None:
        """Of a training step or an evaluation."""

    def after_forward(self, micro_batch: int, stage: int) -> None: ...

    def before_backward(self, micro_batch: int, stage: int) -> None:
        """The whole backward pass; of the schedules that split it, the gradients of the inputs."""

    def after_backward(self, micro_batch: int, stage: int) -> None: ...

    def before_backward_weight(self, micro_batch: int, stage: int) -> None:
        """The gradients of the weights, where the schedule splits the backward pass."""

    def after_backward_weight(self, micro_batch: int, stage: int) -> None: ...

    def before_recompute(self, micro_batch: int, stage: int) -> None:
        """Of one part that activation checkpointing computes again; inside a backward pass, or just before it."""

    def after_recompute(self, micro_batch: int, stage: int) -> None: ...


KINDS = ("forward", "backward", "backward_weight", "recompute")


class Callbacks:
    """Several callbacks, called in order before and in reverse order after."""

    def __init__(self, callbacks: Sequence[PipelineCallback] = ()):
        self._callbacks = list(callbacks)

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    @contextlib.contextmanager
    def around(self, kind: str, micro_batch: int, stage: int) -> Iterator[None]:
        """Tell of the computation inside; `kind` is one of KINDS. What fails inside is not told as done."""
        for callback in self._callbacks:
            callback.before(kind, micro_batch, stage)
        yield
        for callback in reversed(self._callbacks):
            callback.after(kind, micro_batch, stage)

    def after_step(self, step: int) -> None:
        """Tell of the end of an optimizer step."""
        for callback in reversed(self._callbacks):
            callback.after_step(step)

    def close(self) -> None:
        """Tell of the end of the run."""
        for callback in reversed(self._callbacks):
            callback.close()
