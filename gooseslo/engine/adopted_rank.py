"""What an adopted rank owes the launch, and what its failure comes to: it has no parent of ours to decide for it."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from collections.abc import Sequence

from gooseslo.engine import failure, roster, watchdog
from gooseslo.engine.failure import Failure
from gooseslo.engine.interrupt import SAME_FORWARDED_SECONDS, SAME_SIGNAL_SECONDS, Interrupted
from gooseslo.engine.launcher import LaunchSpec
from gooseslo.engine.place import Place
from gooseslo.engine.roster import Member
from gooseslo.engine.worker import Duties, WorkerSetup, log_path
from gooseslo.errors import GooseError, WorkerError

_LEAVE_SECONDS = 2.0
_POLL_SECONDS = 0.02


class SaidElsewhere(GooseError):  # noqa: N818
    """This rank failed, and another tells the user why."""

    def __init__(self, exit_code: int):
        self.exit_code = exit_code
        super().__init__()


class AdoptedDuties(Duties):
    """Those of a rank without a parent of ours: it decides for itself what a signal means."""

    def __init__(self, place: Place):
        super().__init__(place.rank)
        # A launcher hands a terminal's Ctrl-C on to ranks that had it already, when it comes to it.
        self.watch.same_seconds = SAME_FORWARDED_SECONDS if place.ends_with_parent else SAME_SIGNAL_SECONDS
        self.by_torchrun = place.starter_listens
        self.deaf = False
        self._training = False
        self._terminal = os.dup(2)  # before the log takes its place

    def enlist(self, setup: WorkerSetup) -> None:
        """Sign in for the work."""
        self._folder, self.shutdown_seconds = setup.failure_dir, setup.shutdown_seconds
        try:
            roster.sign_in(self.folder, self.rank)
        except FileNotFoundError:
            reason = f"the folder {self.folder} of the launch is not there: the run ended, or this machine lacks it"
            raise WorkerError(f"rank {self.rank}: {reason}") from None

    def begin_training(self) -> None:
        super().begin_training()
        self._training = True

    def _on_signal(self, number: int, again: bool) -> None:
        """Before training and at a second Ctrl-C the end; while training a save, for which there is so much time."""
        if self.deaf or self._failing:
            return
        if self._folder is not None and self.has_failed_peer():
            failures = failure.read_all(self.folder).values()
            cause = failure.root_cause(list(failures)).exit_code if failures else 1
            self.leave_with_peers(exit_code=max(1, cause))
        if not self._training or (again and number == signal.SIGINT):
            os._exit(128 + (self.watch.number or number))
        if not again:
            end = threading.Timer(self.shutdown_seconds, self._give_up, (number,))
            end.daemon = True
            end.start()

    def _give_up(self, number: int) -> None:
        """The time to save is over, as where a rank of another machine is gone and nobody here can know."""
        try:
            faulthandler.dump_traceback(all_threads=True)
            if self.rank == 0:
                name, seconds = signal.Signals(number).name, self.shutdown_seconds
                reason = f"not all ranks could save and end within launcher.shutdown_seconds={seconds:g}"
                os.write(
                    self._terminal, f"interrupted by {name}: {reason}; each log shows where its rank was\n".encode()
                )
        finally:
            os._exit(128 + number)


def _dismiss(members: Sequence[Member]) -> None:
    """End these of the ranks, by themselves where they can: the exit code of each is its launcher's to see."""
    for member in members:
        member.send(signal.SIGTERM)
    deadline = time.monotonic() + _LEAVE_SECONDS
    while any(member.is_local and member.state() for member in members) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    watchdog.end(members)


def outcome(found: Failure, spec: LaunchSpec, setup: WorkerSetup) -> GooseError:
    """What this rank's failure comes to: the whole error on the rank that shows it, the exit code on the others."""
    if found.interrupted_by:
        return Interrupted(found.interrupted_by, reason=f"not saved: {found.summary()}")
    folder = setup.failure_dir
    failures = {found.rank: found, **failure.read_all(folder)}
    left = [member for member in roster.members(folder) if member.rank not in failures]
    for member in left:
        if not (state := member.state()):
            failures[member.rank] = failure.vanished(member.rank, host=member.host)
        elif found.timed_out:
            failures[member.rank] = failure.silent(member.rank, state, host=member.host)
    cause = failure.root_cause(list(failures.values()))
    # The cause shows itself, if it can.
    speakers = [cause.rank] if cause.type_name else [rank for rank, other in failures.items() if other.type_name]
    if found.rank != min(speakers):
        return SaidElsewhere(max(1, cause.exit_code))
    _dismiss(left)
    logs = {rank: log_path(setup.run_dir, rank) for rank in range(spec.num_workers)}
    return failure.to_error(list(failures.values()), coordinates=spec.coordinates, logs=logs)
