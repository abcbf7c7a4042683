"""The observer that shows a run to its user: which display fits the stream, and who takes which record."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, TextIO

from gooseslo.engine.display.live import LiveDisplay
from gooseslo.engine.display.plain import PlainDisplay, QuietDisplay
from gooseslo.engine.display.screen import can_draw
from gooseslo.engine.display.wording import Record


class Display(Protocol):
    """Shows records, each kind by its own method."""

    def on_train(self, record: Record) -> None: ...

    def on_eval(self, record: Record) -> None: ...

    def on_save(self, record: Record) -> None: ...

    def on_warning(self, record: Record) -> None: ...

    def close(self) -> None: ...


class Reporter:
    """Shows the records of a run on `console`; nothing where that is None. Close it, so that the terminal is free."""

    def __init__(
        self,
        console: TextIO | None,
        *,
        num_steps: int,
        progress: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without `progress` only warnings are shown."""
        self._display: Display | None
        if console is None:
            self._display = None
        elif not progress:
            self._display = QuietDisplay(console)
        elif can_draw(console):
            self._display = LiveDisplay(console, num_steps, clock)
        else:
            self._display = PlainDisplay(console, num_steps, clock)

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
