"""The live display of a terminal: the last step's numbers, drawn over in place.

It is drawn when a record comes, without a thread of its own: the process trains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.text import Text

from gooseslo.engine.display import wording
from gooseslo.engine.display.curve import LossCurve, sparkline
from gooseslo.engine.display.screen import Screen
from gooseslo.engine.display.wording import Record

_SECONDS_PER_DRAWING = 0.1  # faster is not seen, and would take time from the training
_WIDE = 120
_SHORTEST_BAR = 4
_GAP = "  "
_EVALUATION = "last evaluation:"


@dataclass(frozen=True, kw_only=True)
class View:
    """What there is to show."""

    record: Record
    """The last train record."""
    num_steps: int
    time_left: str
    curve: LossCurve
    evaluation: Record | None


class LiveDisplay:
    """The numbers of the last step at the foot of the terminal; evaluations, saves and warnings stay above."""

    def __init__(self, stream: TextIO, num_steps: int, clock: Callable[[], float]):
        self._num_steps, self._clock = num_steps, clock
        self._speed, self._curve = wording.Speed(num_steps), LossCurve()
        self._record: Record | None = None
        self._evaluation: Record | None = None
        self._drawn_at = -math.inf
        self._screen = Screen(stream)

    def on_train(self, record: Record) -> None:
        self._record = record
        self._speed.add(record)
        if record["skipped"]:
            self._say(wording.skipped(record), style="yellow")
            return
        self._curve.add(record["loss"])
        if self._clock() - self._drawn_at >= _SECONDS_PER_DRAWING:
            self._draw()

    def on_eval(self, record: Record) -> None:
        self._evaluation = record
        self._say(wording.evaluation(record), style="cyan")

    def on_save(self, record: Record) -> None:
        self._say(wording.save(record), style="dim")

    def on_warning(self, record: Record) -> None:
        self._say(f"warning: {record['text']}", style="yellow")

    def close(self) -> None:
        self._draw()
        self._screen.close()

    def _draw(self) -> None:
        self._drawn_at = self._clock()
        self._screen.draw(self._lines())

    def _say(self, text: str, *, style: str) -> None:
        self._screen.draw(self._lines(), above=Text(text, style=style))

    def _lines(self) -> list[Text]:
        if self._record is None:
            return []
        view = View(
            record=self._record,
            num_steps=self._num_steps,
            time_left=self._speed.time_left(),
            curve=self._curve,
            evaluation=self._evaluation,
        )
        return render(view, self._screen.width)


def render(view: View, width: int) -> list[Text]:
    """The display in lines of at most `width` cells, for any width."""
    record, evaluation = view.record, view.evaluation
    beside = wording.evaluation(evaluation) if evaluation and width >= _WIDE else ""
    lines = [_progress(view, width), _loss(view, width, beside)]
    lines += [Text(line) for line in flow(wording.train_parts(record), width)]
    if len(record["stage_seconds"]) > 1:
        lines.append(_stages(record, width))
    if evaluation and not beside:
        said = wording.evaluation(evaluation)
        lines.append(Text(max(flow([_EVALUATION, said], width), key=len), style="cyan"))
    for line in lines:
        line.truncate(width)
    return lines


def flow(parts: Sequence[str], width: int) -> list[str]:
    """The parts in as few lines as hold them, in their order."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(_GAP) + len(part) <= width:
            lines[-1] += _GAP + part
        else:
            lines.append(part)
    return lines


def _progress(view: View, width: int) -> Text:
    step = view.record["step"]
    share = min(1.0, step / view.num_steps)
    head, tail = f"step {step}/{view.num_steps} ", f" {share:4.0%}"
    if view.time_left:
        tail += _GAP + view.time_left
    return Text.assemble((head, "bold"), _bar(share, width - len(head) - len(tail)), tail)


def _loss(view: View, width: int, beside: str) -> Text:
    """The loss, its curve over the whole run so far, and in a wide terminal the last evaluation."""
    head = wording.loss_of(view.record) + _GAP
    tail = f"{_GAP}{_EVALUATION}{_GAP}{beside}" if beside else ""
    points = view.curve.points(max(1, width - len(head) - len(tail)))
    return Text.assemble((head, "bold"), (sparkline(points), "green"), (tail, "cyan"))


def _stages(record: Record, width: int) -> Text:
    """How long each stage computed, as a share of the step: what is left it waited for others or for the update."""
    seconds = record["stage_seconds"]
    labels = [f"stage {stage} " for stage in range(len(seconds))]
    times = [f" {wording.short_time(value)}" for value in seconds]
    cell = (width - len(_GAP) * (len(seconds) - 1)) // len(seconds)
    length = cell - max(map(len, labels)) - max(map(len, times))
    if length >= _SHORTEST_BAR:
        parts = [
            Text.assemble(label, _bar(value / record["step_seconds"], length), time)
            for label, value, time in zip(labels, seconds, times)
        ]
        return Text(_GAP).join(parts)
    line = f"stages{''.join(_GAP + f'{stage}:{time}' for stage, time in enumerate(times))}"
    if len(line) <= width:
        return Text(line)
    slowest, fastest = seconds.index(max(seconds)), seconds.index(min(seconds))
    return Text(f"{len(seconds)} stages: {slowest} computes longest,{times[slowest]}; {fastest} least,{times[fastest]}")


def _bar(share: float, length: int) -> Text:
    full = round(min(1.0, max(0.0, share)) * max(0, length))
    return Text.assemble(("━" * full, "green"), ("─" * (length - full), "dim"))
