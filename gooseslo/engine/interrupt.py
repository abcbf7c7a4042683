"""Signals from outside: in the command they raise, in a worker that trains they ask for a save and a stop."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType

from gooseslo.errors import GooseError

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_SIGNAL_SECONDS = 0.5
"""What comes so soon after the first is that one again: a terminal, a launcher and `timeout` each send their own."""
SAME_FORWARDED_SECONDS = 3.0
"""The same, where a launcher hands on what the process had already: a busy machine takes its time."""


class Interrupted(GooseError):  # noqa: N818  (nothing is wrong)
    """The run was ended from outside by a signal; the exit code is the shell's for it.

    `stopped`: all ranks ended together after a save. `reason`: what else is to be said of the end.
    """

    def __init__(self, number: int, *, stopped: bool = False, reason: str = ""):
        self.signal = signal.Signals(number)
        self.exit_code = 128 + number
        self.stopped = stopped
        super().__init__(f"interrupted by {self.signal.name}" + (f": {reason}" if reason else ""))

    def say(self, what: str) -> None:
        """Add to the message."""
        self.args = (f"{self}{what}",)


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have `handler` take the stop signals, and give the caller's own back afterwards; only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in _heard()}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Turn a signal into Interrupted, with what was half made removed on the way out."""
    received = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt  # which nobody takes for an error to be dealt with

    try:
        with handled(interrupt):
            yield
    except KeyboardInterrupt:
        raise Interrupted(received[0] if received else signal.SIGINT) from None


class SignalWatch:
    """A worker's signals, taken in a thread of their own: the main thread may be waiting in C++ for other ranks.

    The first is remembered in `number`. `on_signal(number, again)` is called in the thread for each; `again` is true
    for one that somebody sent after the first.
    """

    def __init__(self, on_signal: Callable[[int, bool], None]):
        self.number = 0
        self.first_at = 0.0
        """Monotonic clock of the first."""
        self.same_seconds = SAME_SIGNAL_SECONDS
        self._on_signal = on_signal

    def start(self) -> None:
        """Take the process's signals from here on; in the main thread."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in _heard():
            signal.signal(number, _leave_it_to_the_thread)
            signal.siginterrupt(number, False)  # no system call of C++ code fails for it
        threading.Thread(target=self._run, args=(reader,), name="signals", daemon=True).start()

    def _run(self, reader: int) -> None:
        while taken := os.read(reader, 64):
            for number in taken:
                if number in STOP_SIGNALS:
                    self.take(number)

    def take(self, number: int) -> None:
        now = time.monotonic()
        again = self.number != 0 and now - self.first_at > self.same_seconds
        if self.number == 0:
            self.first_at = now
        try:
            self._on_signal(number, again)
        except Exception:  # without this thread no signal would be heard any more
            traceback.print_exc()
        # Last, so that the loop does not see a signal on which the process is to end at once.
        self.number = self.number or number


def _heard() -> list[signal.Signals]:
    """The stop signals; without SIGHUP under nohup, which has it ignored."""
    deaf = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in STOP_SIGNALS if not (deaf and number is signal.SIGHUP)]


def _leave_it_to_the_thread(number: int, frame: FrameType | None) -> None:
    pass
