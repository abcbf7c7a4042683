"""How long a stage computes in a step: what its rank waits for other stages is left out.

On CUDA by events in the stream, read once after the step, so that no micro-batch waits for the device; a receive from
another stage is waited for in the stream before the first event. Elsewhere by the clock.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch


class Stopwatch:
    """Sums the time spent inside `running`; collectives of the tensor-parallel group inside a layer count."""

    def __init__(self, device: torch.device):
        self._on_cuda = device.type == "cuda"
        self._elapsed = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._num_used = 0

    def reset(self) -> None:
        self._elapsed, self._num_used = 0.0, 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count what the block takes."""
        if self._on_cuda:
            start, end = self._next_events()
            start.record()
            yield
            end.record()
        else:
            began = time.perf_counter()
            yield
            self._elapsed += time.perf_counter() - began

    def seconds(self) -> float:
        """Since the last reset; on CUDA this waits until the last block is computed."""
        used = self._events[: self._num_used]
        if used:
            used[-1][1].synchronize()
        return self._elapsed + sum(start.elapsed_time(end) for start, end in used) / 1000

    def _next_events(self) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        """A pair of events; those of earlier steps are used again."""
        if self._num_used == len(self._events):
            self._events.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
        self._num_used += 1
        return self._events[self._num_used - 1]
