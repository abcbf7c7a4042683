"""What the user sees of a run: a live display on a terminal, plain lines elsewhere, and a summary at the end."""

from __future__ import annotations

import math
import os
import shlex
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gooseslo.engine.metrics import read_metrics
from gooseslo.schema.quoting import as_argument

_FEW_STEPS = 20  # a run of so few has a plain line for each
_STEPS_PER_LINE = 10
_SECONDS_PER_LINE = 10.0
_STEPS_FOR_SPEED = 20
_BAR_WIDTH = 24

Record = Mapping[str, Any]


class Reporter:
    """Shows the records of a run on `console`; nothing where that is None. Close it, so that the terminal is free."""

    def __init__(self, console: TextIO | None, *, num_steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._display: _LiveDisplay | _PlainDisplay | None
        if console is None:
            self._display = None
        elif console.isatty():
            self._display = _LiveDisplay(console, num_steps)
        else:
            self._display = _PlainDisplay(console, num_steps, clock)

    def __call__(self, record: Record) -> None:
        """Take a train, eval, save or warning record."""
        if self._display is not None:
            getattr(self._display, f"on_{record['kind']}")(record)

    def close(self) -> None:
        if self._display is not None:
            self._display.close()
            self._display = None

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _PlainDisplay:
    """A line every few steps, and one for each evaluation and save."""

    def __init__(self, stream: TextIO, num_steps: int, clock: Callable[[], float]):
        self._stream, self._num_steps, self._clock = stream, num_steps, clock
        self._speed = _Speed(num_steps)
        self._last_line_at = -math.inf

    def on_train(self, record: Record) -> None:
        self._speed.add(record)
        step, now = record["step"], self._clock()
        due = step % _STEPS_PER_LINE == 0 or step == self._num_steps or self._num_steps <= _FEW_STEPS
        if due or record["skipped"] or now - self._last_line_at >= _SECONDS_PER_LINE:
            self._last_line_at = now
            self._write(f"step {step}/{self._num_steps}  {_numbers(record)}  {self._speed.time_left()}")

    def on_eval(self, record: Record) -> None:
        self._write(_evaluation(record))

    def on_save(self, record: Record) -> None:
        self._write(_save(record))

    def on_warning(self, record: Record) -> None:
        self._write(f"warning: {record['text']}")

    def close(self) -> None:
        self._stream.flush()

    def _write(self, line: str) -> None:
        self._stream.write(line.rstrip() + "\n")


class _LiveDisplay:
    """A bar with the last step's numbers that is drawn over; evaluations and saves stay above it.

    It is drawn when a record comes, without a thread of its own: the process trains.
    """

    def __init__(self, stream: TextIO, num_steps: int):
        self._stream, self._num_steps = stream, num_steps
        self._speed = _Speed(num_steps)
        self._evaluation = ""
        # standard output is the rank's log by now, so rich would measure that instead of the terminal
        self._console = Console(file=stream, force_terminal=True, width=_columns(stream))
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._live.start()

    def on_train(self, record: Record) -> None:
        self._speed.add(record)
        self._console.width = _columns(self._stream)
        if record["skipped"]:
            self._console.print(Text(f"step {record['step']}: {_numbers(record)}", style="yellow"))
        self._live.update(self._render(record), refresh=True)

    def on_eval(self, record: Record) -> None:
        self._evaluation = _evaluation(record)
        self._console.print(Text(self._evaluation, style="cyan"))

    def on_save(self, record: Record) -> None:
        self._console.print(Text(_save(record), style="dim"))

    def on_warning(self, record: Record) -> None:
        self._console.print(Text(f"warning: {record['text']}", style="bold yellow"))

    def close(self) -> None:
        self._live.stop()

    def _render(self, record: Record) -> RenderableType:
        step = record["step"]
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            Text(f"step {step}/{self._num_steps}", style="bold"),
            ProgressBar(total=self._num_steps, completed=step, width=_BAR_WIDTH),
            Text(self._speed.time_left()),
        )
        lines: list[RenderableType] = [bar, Text(_numbers(record))]
        if self._evaluation:
            lines.append(Text(f"last evaluation: {self._evaluation}", style="cyan"))
        return Group(*lines)


class _Speed:
    """How long the rest will take, from the middle of the last steps: the first, slow ones are soon forgotten."""

    def __init__(self, num_steps: int):
        self._num_steps, self._step = num_steps, 0
        self._seconds: deque[float] = deque(maxlen=_STEPS_FOR_SPEED)

    def add(self, record: Record) -> None:
        self._step = record["step"]
        self._seconds.append(record["step_seconds"])

    def time_left(self) -> str:
        remaining = self._num_steps - self._step
        if remaining <= 0 or not self._seconds:
            return ""
        return f"{_duration(remaining * statistics.median(self._seconds))} left"


def summary(run_dir: Path) -> str:
    """What a run came to, from its own files."""
    records = read_metrics(run_dir / "metrics.jsonl")
    steps = [record for record in records if record["kind"] == "train"]
    evaluations = [record for record in records if record["kind"] == "eval"]
    lines = []
    if steps:
        first, last = steps[0], steps[-1]
        speed = statistics.median(record["tokens_per_second"] for record in steps)
        losses = (
            f"loss {_number(first['loss'], '.4f')} at step {first['step']}, {_number(last['loss'], '.4f')} at the end"
        )
        lines.append(f"{last['step']} steps, {last['consumed_tokens']:,} tokens, {speed:,.0f} tokens/s; {losses}")
    if evaluations:
        lines.append(_evaluation(evaluations[-1]))
    lines.append(f"run folder: {run_dir}")
    if (run_dir / "checkpoints" / "latest").exists():
        folders = as_argument("input", str(run_dir)), as_argument("output", str(run_dir / "merged"))
        lines.append(f"next: gooseslo merge-checkpoint {shlex.join(folders)}")
    return "".join(f"{line}\n" for line in lines)


def _numbers(record: Record) -> str:
    if record["skipped"]:
        return "skipped: the gradient is not finite"
    parts = [
        f"loss {_number(record['loss'], '.4f')}",
        f"lr {record['lr']:.2e}",
        f"grad norm {_number(record['grad_norm'], '.3f')}",
        f"{record['tokens_per_second']:,.0f} tokens/s",
    ]
    if record["mfu"] is not None:
        parts.append(f"mfu {record['mfu']:.1%}")
    return "  ".join(parts)


def _evaluation(record: Record) -> str:
    loss, perplexity = _number(record["loss"], ".4f"), _number(record["perplexity"], ",.2f")
    return f"step {record['step']}: {record['split']} loss {loss}, perplexity {perplexity}"


def _save(record: Record) -> str:
    return f"step {record['step']}: saved {record['path']}"


def _number(value: float | None, form: str) -> str:
    """A number that may be what JSON has no word for."""
    return "not finite" if value is None or not math.isfinite(value) else format(value, form)


def _duration(seconds: float) -> str:
    minutes, whole_seconds = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{whole_seconds:02}s" if minutes else f"{whole_seconds}s"


def _columns(stream: TextIO) -> int:
    return os.get_terminal_size(stream.fileno()).columns or 80
