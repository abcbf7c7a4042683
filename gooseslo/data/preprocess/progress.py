"""How far preprocessing is and how fast: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from gooseslo.data.preprocess.folder import Tally

_SECONDS_PER_LINE = 5.0
_SECONDS_PER_SCREEN = 0.2


class ProgressReport:
    """A context manager. Speeds are of this process: what an earlier one did counts for the part done alone."""

    def __init__(
        self,
        stream: TextIO,
        *,
        title: str,
        total_bytes: int | None,
        clock: Callable[[], float] = time.monotonic,
        documents_per_line: int | None = None,
    ):
        """`total_bytes`: of the input on the disk; None where nobody knows. `documents_per_line`: in place of time."""
        self._stream, self._title, self._total, self._clock = stream, title, total_bytes, clock
        self._documents_per_line = documents_per_line
        self._began = self._last = clock()
        self._first: tuple[int, int, int, int] | None = None
        self._latest: tuple[tuple[int, int, int, int], float] | None = None
        self._last_documents = 0
        self._bar = _bar(stream, title) if stream.isatty() else None

    def __enter__(self) -> ProgressReport:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=self._total or None, rest="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            if error is None and self._latest is not None:
                self._show(*self._latest)
            self._bar.stop()

    def line(self, text: str) -> None:
        """A line of its own."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            self._stream.write(text + "\n")
            self._stream.flush()

    def update(self, done_bytes: int, tally: Tally) -> None:
        """Show how far it is, if it is time to."""
        now = self._clock()
        state = (done_bytes, tally.text_bytes, tally.documents, tally.tokens)
        self._first = self._first or state
        self._latest = (state, now)
        if self._is_due(now, tally.documents):
            self._last, self._last_documents = now, tally.documents
            self._show(state, now)

    def _show(self, state: tuple[int, int, int, int], now: float) -> None:
        rest = self._words(state, max(now - self._began, 1e-9))
        if self._bar is not None:
            self._bar.update(self._task, completed=state[0], rest=rest)
        else:
            part = f"{state[0] / self._total:4.0%}  " if self._total else ""
            self.line(f"{self._title}  {part}{rest}")

    def _is_due(self, now: float, documents: int) -> bool:
        if self._bar is not None:
            return now - self._last >= _SECONDS_PER_SCREEN
        if self._documents_per_line is not None:
            return documents - self._last_documents >= self._documents_per_line
        return now - self._last >= _SECONDS_PER_LINE

    def _words(self, state: tuple[int, int, int, int], seconds: float) -> str:
        assert self._first is not None
        done, text, documents, tokens = (new - old for new, old in zip(state, self._first))
        parts = [f"{text / seconds / 1e6:.1f} MB/s", f"{_short(documents / seconds)} documents/s"]
        parts.append(f"{_short(tokens / seconds)} tokens/s")
        if self._total and done:
            parts.append(f"{duration((self._total - state[0]) * seconds / done)} left")
        return "  ".join(parts)


def _bar(stream: TextIO, title: str) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[rest]}"))
    return Progress(*columns, console=Console(file=stream), refresh_per_second=4)


def _short(number: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.1f}{unit}"
    return f"{number:.0f}"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as short as they go."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole // 60 % 60:02} h"
