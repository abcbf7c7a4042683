"""Ends what is left of a launch: after a failure soon, after a signal when the time to save is over."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from gooseslo.engine import failure, roster
from gooseslo.engine.failure import Failure
from gooseslo.engine.roster import Member

_POLL_SECONDS = 0.2
_GRACE_SECONDS = 5.0
"""From the first failure to the end of all; more than a worker holds back that failed in a collective."""
_DUMP_SECONDS = 0.5


class Watchdog:
    """A thread of the parent that kills workers: the agent waits half a minute for one that does not react.

    `silent` has, by rank, the failures of those it had to kill. Leaves with the block it guards.
    """

    def __init__(self, folder: Path):
        self.silent: dict[int, Failure] = {}
        self._folder = folder
        self._deadline: float | None = None
        self._condemned = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def allow(self, seconds: float) -> None:
        """All workers must have ended by then."""
        deadline = time.monotonic() + seconds
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)

    def tell(self, number: int) -> None:
        """Send every worker a signal."""
        for member in roster.members(self._folder):
            member.send(number)

    def condemn(self) -> None:
        """Kill every worker, also one that only now starts: the exception that ends the launch may be lost."""
        self._condemned = True
        self.tell(signal.SIGKILL)

    def _run(self) -> None:
        failed = False
        while not self._over.wait(_POLL_SECONDS):
            if self._condemned:
                self.tell(signal.SIGKILL)
                continue
            if not failed and (roster.dead(self._folder) or failure.read_all(self._folder)):
                failed = True
                self.allow(_GRACE_SECONDS)
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self._end()
                return

    def _end(self) -> None:
        self.silent = end(roster.members(self._folder))


def end(members: Iterable[Member]) -> dict[int, Failure]:
    """Kill these of the workers that still live; gives their failures by rank."""
    left = {member: member.state() for member in members if member.is_local}
    left = {member: state for member, state in left.items() if state}
    for member in left:
        member.send(signal.SIGUSR1)  # show where it is, in its log
    if left:
        time.sleep(_DUMP_SECONDS)
    for member in left:
        member.send(signal.SIGKILL)
    return {member.rank: failure.silent(member.rank, state, host=member.host) for member, state in left.items()}
