"""What surrounds every computation of a rank's stages: its place for the random streams, its time, who is told."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

from gooseslo.parallel.pipeline.callbacks import Callbacks
from gooseslo.parallel.pipeline.stopwatch import Stopwatch
from gooseslo.parallel.random import RandomStreams


class RankWork:
    """Micro-batches are counted here from 0 on this data-parallel rank, and over all of them for everybody else."""

    def __init__(
        self,
        streams: RandomStreams,
        stopwatch: Stopwatch,
        callbacks: Callbacks,
        *,
        first_micro_batch: int,
        num_micro: int,
    ):
        self.stopwatch = stopwatch
        self.complete: Callable[[int], None] = lambda stage: None
        """Called with a stage of this rank when nothing more will be added to its gradients in this step."""
        self.weights_needed: Callable[[int], None] = lambda stage: None
        """Called with a stage of this rank before it computes with its weights."""
        self.recompute_ahead: Callable[[int, int], None] = lambda stage, micro_batch: None
        """Called with a stage of this rank and a micro-batch (over all dp ranks) whose gradient is on its way."""
        self._num_micro, self._done = num_micro, Counter[int]()
        self._streams, self._callbacks, self._first = streams, callbacks, first_micro_batch

    def begin(self) -> None:
        """A training step begins."""
        self.stopwatch.reset()
        self._done.clear()

    def is_last(self, stage: int) -> bool:
        """Whether the backward pass that runs, or is next, is the stage's last in this step."""
        return self._done[stage] == self._num_micro - 1

    def gradient_awaited(self, micro_batch: int, stage: int) -> None:
        """The backward pass of a micro-batch is next, and its gradient may still be on its way."""
        self._streams.micro_batch = self._first + micro_batch
        with self.stopwatch.running():
            self.recompute_ahead(stage, self._streams.micro_batch)

    def gradients_done(self, stage: int) -> None:
        """The backward pass of another micro-batch has ended, that of the weights included."""
        self._done[stage] += 1
        if self._done[stage] == self._num_micro:
            self.complete(stage)

    @contextlib.contextmanager
    def running(self, kind: str, micro_batch: int, stage: int) -> Iterator[None]:
        """Around a computation of one of the callbacks' kinds."""
        self._streams.micro_batch = self._first + micro_batch
        if kind == "forward":
            self.weights_needed(stage)
        with self._callbacks.around(kind, self._streams.micro_batch, stage), self.stopwatch.running():
            yield
