"""Plain lines, for files, pipes and continuous integration."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TextIO

from gooseslo.engine.display import wording
from gooseslo.engine.display.wording import Record

_FEW_STEPS = 20  # a run of so few has a line for each
_STEPS_PER_LINE = 10
_SECONDS_PER_LINE = 10.0


class QuietDisplay:
    """Warnings alone."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def on_train(self, record: Record) -> None:
        """Nothing is shown."""

    def on_eval(self, record: Record) -> None:
        """Nothing is shown."""

    def on_save(self, record: Record) -> None:
        """Nothing is shown."""

    def on_warning(self, record: Record) -> None:
        self._write(f"warning: {record['text']}")

    def close(self) -> None:
        self._stream.flush()

    def _write(self, line: str) -> None:
        self._stream.write(line.rstrip() + "\n")


class PlainDisplay(QuietDisplay):
    """A line every few steps, and one for each evaluation and save."""

    def __init__(self, stream: TextIO, num_steps: int, clock: Callable[[], float]):
        super().__init__(stream)
        self._num_steps, self._clock = num_steps, clock
        self._speed = wording.Speed(num_steps)
        self._last_line_at = -math.inf

    def on_train(self, record: Record) -> None:
        self._speed.add(record)
        step, now = record["step"], self._clock()
        due = step % _STEPS_PER_LINE == 0 or step == self._num_steps or self._num_steps <= _FEW_STEPS
        if not (due or record["skipped"] or now - self._last_line_at >= _SECONDS_PER_LINE):
            return
        self._last_line_at = now
        if record["skipped"]:
            self._write(wording.skipped(record))
        else:
            parts = [wording.loss_of(record), *wording.train_parts(record), self._speed.time_left()]
            self._write(f"step {step}/{self._num_steps}  {'  '.join(parts)}")

    def on_eval(self, record: Record) -> None:
        self._write(wording.evaluation(record))

    def on_save(self, record: Record) -> None:
        self._write(wording.save(record))
