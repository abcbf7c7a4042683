"""Ranks that somebody else started: rank 0 composes and prepares, the others receive the job and run their part.

They speak through the store in which the process group then meets; nothing but rank 0 reads the configuration.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TextIO

import torch.distributed as dist

from gooseslo.engine import failure, roster, watchdog
from gooseslo.engine.failure import Failure
from gooseslo.engine.interrupt import Interrupted
from gooseslo.engine.launcher import LaunchSpec, scratch_folder
from gooseslo.engine.place import Place
from gooseslo.engine.run_folder import LOGS
from gooseslo.engine.worker import Duties, WorkerSetup, die_with, log_path, redirect, run_main
from gooseslo.errors import ConfigError, Fault, GooseError, WorkerError
from gooseslo.schema.groups import TrainJob

_WORK, _HEARD, _READY, _WORLD = "gooseslo/work", "gooseslo/heard", "gooseslo/ready", "gooseslo/world"
_MEET_SECONDS = 300.0
_HEAR_SECONDS = 60.0
_POLL_SECONDS = 0.02
_PREPARING = timedelta(days=7)  # rank 0 may tokenise for hours; where it ends, the connection does


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Work:
    """What rank 0 hands to the others: their part in a run."""

    spec: LaunchSpec
    setup: WorkerSetup
    main: Callable[..., None]
    args: tuple[Any, ...]


class _SaidElsewhere(GooseError):  # noqa: N818
    """This rank failed, and another tells the user why."""

    def __init__(self, exit_code: int):
        self.exit_code = exit_code
        super().__init__()


class Leader:
    """Rank 0: takes the launcher's part for ranks that run already."""

    def __init__(self, place: Place):
        self._place = place
        self._store: dist.Store | None = None
        self._told = False

    def sized(self, job: TrainJob) -> TrainJob:
        """The job for as many workers as were started, and by whom; ConfigError where it names another number."""
        wanted, found = job.launcher.workers, self._place.world_size
        if wanted not in (None, found):
            rule = f"{self._place.starter} started {found} ranks"
            raise ConfigError(Fault(key="launcher.workers", value=wanted, rule=rule, way_out="leave it out"))
        launcher = dataclasses.replace(job.launcher, workers=found, name=self._place.starter)
        return dataclasses.replace(job, launcher=launcher)

    def launch(self, spec: LaunchSpec, main: Callable[..., None], *args: Any) -> None:
        """Call `main(worker, *args)` on every rank, as `launcher.launch` does; what is passed must be picklable.

        All machines must see the folder of the run, under the same path.
        """
        spec = dataclasses.replace(spec, run_dir=spec.run_dir.resolve())
        spec.run_dir.joinpath(LOGS).mkdir(parents=True, exist_ok=True)
        scratch = spec.run_dir / f".launch-{os.getpid()}"
        setup = spec.worker_setup(scratch, workers_here=self._place.local_size, parent_pid=os.getppid())
        work = _Work(spec=spec, setup=setup, main=main, args=args)
        duties = AdoptedDuties(self._place.rank)
        duties.watch.start()
        with scratch_folder(scratch):
            self._tell(work)
            _take_part(self._place, self._meet(), work, duties)

    @property
    def command(self) -> list[str]:
        """What starts a run the way this one was."""
        place = self._place
        if place.starter == "slurm":
            return ["srun", "-n", str(place.world_size), "gooseslo", "train"]
        return ["torchrun", f"--nproc-per-node={place.local_size}", "-m", "gooseslo", "train"]

    def dismiss(self, exit_code: int, *, wait: bool = True) -> None:
        """Have the others end with this exit code, unless they have work; waits until they have heard it."""
        if self._told:
            return
        self._tell(exit_code)
        deadline = time.monotonic() + (_HEAR_SECONDS if wait else 0)
        while self._meet().add(_HEARD, 0) < self._place.world_size - 1 and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def _tell(self, what: _Work | int) -> None:
        self._meet().set(_WORK, pickle.dumps(what))  # type: ignore[arg-type]
        self._told = True

    def _meet(self) -> dist.Store:
        self._store = self._store or _meet(self._place)
        return self._store


def lead(place: Place, run: Callable[[Leader], int], report: Callable[[GooseError], None]) -> int:
    """Rank 0: `run` the command, and end the others as it ends; the exit code. `report` shows an error to the user."""
    leader = Leader(place)
    if place.ends_with_parent:
        die_with(os.getppid())
    try:
        exit_code = run(leader)
    except GooseError as error:
        report(error)
        with contextlib.suppress(dist.DistError):
            leader.dismiss(error.exit_code)
        _leave(error.exit_code)
    except KeyboardInterrupt:  # the others have had the signal as well
        leader.dismiss(1, wait=False)
        raise
    except BaseException:
        leader.dismiss(1)
        raise
    leader.dismiss(exit_code)
    return exit_code


def follow(place: Place, report: Callable[[GooseError], None]) -> int:
    """Any other rank: wait for what rank 0 has to say, take part in the run, and end with it; the exit code."""
    duties = AdoptedDuties(place.rank)
    duties.watch.start()
    if place.ends_with_parent:
        die_with(os.getppid())
    try:
        store = _meet(place)
        store.wait([_WORK], _PREPARING)
        work: _Work | int = pickle.loads(store.get(_WORK))
        if isinstance(work, int):
            # The starter may end this rank as soon as rank 0 is gone; it goes by itself, with the same code.
            duties.deaf = True
            store.add(_HEARD, 1)
            _leave(work)
        _take_part(place, store, work, duties)
    except (Interrupted, _SaidElsewhere) as error:
        _leave(error.exit_code)
    except GooseError as error:
        report(error)
        _leave(error.exit_code)
    except dist.DistError as error:
        reason = str(error).splitlines()[0]
        report(WorkerError(f"rank {place.rank}: rank 0 is not at {place.host}:{place.port}, or ended: {reason}"))
        _leave(1)
    return 0


class AdoptedDuties(Duties):
    """Those of a rank without a parent of ours: it decides for itself what a signal means."""

    def __init__(self, rank: int):
        super().__init__(rank)
        self.deaf = False
        self._shutdown_seconds = 0.0
        self._training = False

    def enlist(self, work: _Work) -> None:
        """Sign in for the work."""
        self._folder, self._shutdown_seconds = work.setup.failure_dir, work.spec.shutdown_seconds
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
            self.leave_with_peers()
        if not self._training or (again and number == signal.SIGINT):
            os._exit(128 + (self.watch.number or number))
        if not again:
            end = threading.Timer(self._shutdown_seconds, os._exit, (128 + number,))
            end.daemon = True
            end.start()


def _meet(place: Place) -> dist.Store:
    """The store of these ranks; waits until rank 0 listens."""
    return dist.TCPStore(
        place.host,
        place.port,
        is_master=place.rank == 0 and not place.starter_listens,
        timeout=timedelta(seconds=_MEET_SECONDS),
        wait_for_workers=False,
        multi_tenant=True,
    )


def _take_part(place: Place, store: dist.Store, work: _Work, duties: AdoptedDuties) -> None:
    """This rank's part in the run; raises what it ended by: Interrupted, or an error for the user on one rank."""
    duties.enlist(work)
    _await_all_ready(place, store)
    store.set_timeout(timedelta(seconds=work.spec.timeout_seconds))
    meeting = {"store": dist.PrefixStore(_WORLD, store), "rank": place.rank, "world_size": place.world_size}
    with _redirected(log_path(work.setup.run_dir, place.rank)) as console:
        console_of_rank_0 = console if place.rank == 0 else None
        try:
            run_main(
                work.setup,
                duties,
                work.main,
                work.args,
                local_rank=place.local_rank,
                console=console_of_rank_0,
                **meeting,
            )
        except BaseException as error:
            raise _outcome(duties.fail(error), work) from None
    if duties.stopped_by:
        raise Interrupted(duties.stopped_by, stopped=True)


def _await_all_ready(place: Place, store: dist.Store) -> None:
    """Wait for the last rank's start: how long it takes to import is no matter of the run's own timeout."""
    deadline = time.monotonic() + _MEET_SECONDS
    ready = store.add(_READY, 1)
    while ready < place.world_size:
        if time.monotonic() > deadline:
            raise WorkerError(
                f"rank {place.rank}: only {ready} of {place.world_size} ranks came in {_MEET_SECONDS:g} s"
            )
        time.sleep(_POLL_SECONDS)
        ready = store.add(_READY, 0)


@contextlib.contextmanager
def _redirected(path: Path) -> Iterator[TextIO]:
    """Send the output to the log meanwhile; gives the old standard output."""
    kept, streams = [os.dup(1), os.dup(2)], (sys.stdout, sys.stderr)
    console = redirect(path, keep_console=True)
    assert console is not None
    try:
        yield console
    finally:
        for stream in (sys.stdout, sys.stderr, console):
            stream.flush()
        for number, descriptor in enumerate(kept, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdout, sys.stderr = streams
        console.close()


def _outcome(found: Failure, work: _Work) -> GooseError:
    """What this rank's failure comes to: the whole error on the rank that shows it, the exit code on the others."""
    if found.interrupted_by:
        return Interrupted(found.interrupted_by, reason=f"not saved: {found.summary()}")
    folder = work.setup.failure_dir
    failures = {found.rank: found, **failure.read_all(folder)}
    left = [member for member in roster.members(folder) if member.rank not in failures]
    for member in left:
        if not (state := member.state()):
            failures[member.rank] = failure.vanished(member.rank)
        elif found.timed_out:
            failures[member.rank] = failure.silent(member.rank, state)
    cause = failure.root_cause(list(failures.values()))
    # The cause shows itself, if it can.
    speakers = [cause.rank] if cause.type_name else [rank for rank, other in failures.items() if other.type_name]
    if found.rank != min(speakers):
        return _SaidElsewhere(max(1, cause.exit_code))
    watchdog.end(left)
    logs = {rank: log_path(work.setup.run_dir, rank) for rank in range(work.spec.num_workers)}
    return failure.to_error(list(failures.values()), coordinates=work.spec.coordinates, logs=logs)


def _leave(exit_code: int) -> NoReturn:
    """End at once: tearing down a world in which ranks are missing can hang."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
