"""Ranks that somebody else started: rank 0 composes and prepares, the others receive the job and run their part.

Nothing but rank 0 reads the configuration.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

import torch
import torch.distributed as dist

from gooseslo.engine.adopted_rank import AdoptedDuties, SaidElsewhere, outcome
from gooseslo.engine.interrupt import Interrupted
from gooseslo.engine.launcher import LaunchSpec, scratch_folder
from gooseslo.engine.meeting import Meeting
from gooseslo.engine.place import Place
from gooseslo.engine.run_folder import LOGS
from gooseslo.engine.worker import WorkerSetup, die_with, log_path, redirect, run_main
from gooseslo.errors import ConfigError, Fault, GooseError, WorkerError
from gooseslo.schema.groups import TrainJob


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Work:
    """What rank 0 hands to the others: their part in a run."""

    spec: LaunchSpec
    setup: WorkerSetup
    main: Callable[..., None]
    args: tuple[Any, ...]


class Leader:
    """Rank 0: takes the launcher's part for ranks that run already."""

    def __init__(self, place: Place, meeting: Meeting):
        self._place, self._meeting = place, meeting
        self._told = False

    def sized(self, job: TrainJob) -> TrainJob:
        """The job for as many workers as were started, and by whom; ConfigError where these cannot do it."""
        place = self._place
        wanted, found = job.launcher.workers, place.world_size
        if wanted not in (None, found):
            rule = f"{place.starter} started {found} ranks"
            raise ConfigError(Fault(key="launcher.workers", value=wanted, rule=rule, way_out="leave it out"))
        devices = 0 if job.device == "cpu" else torch.cuda.device_count()
        # One device may be this rank's own, the only one that it is shown.
        if 1 < devices < place.local_size:
            rule = f"{place.starter} started {place.local_size} ranks on this machine, which has {devices} CUDA devices"
            raise ConfigError(
                Fault(key="device", value=job.device, rule=rule, way_out="a rank a device, or device=cpu")
            )
        launcher = dataclasses.replace(job.launcher, workers=found, name=place.starter)
        return dataclasses.replace(job, launcher=launcher)

    def launch(self, spec: LaunchSpec, main: Callable[..., None], *args: Any) -> None:
        """Call `main(worker, *args)` on every rank, as `launcher.launch` does; what is passed must be picklable.

        All machines must see the folder of the run, under the same path.
        """
        spec = dataclasses.replace(spec, run_dir=spec.run_dir.resolve())
        spec.run_dir.joinpath(LOGS).mkdir(parents=True, exist_ok=True)
        scratch = spec.run_dir / f".launch-{os.getpid()}"
        work = _Work(spec=spec, setup=spec.worker_setup(scratch, parent_pid=os.getppid()), main=main, args=args)
        duties = AdoptedDuties(self._place)
        duties.watch.start()
        with scratch_folder(scratch):
            self._tell(work)
            _take_part(self._place, self._meeting, work, duties)

    def dismiss(self, exit_code: int, *, wait: bool = True) -> None:
        """Have the others end with this exit code, unless they have work; waits until they have heard it."""
        if not self._told:
            with contextlib.suppress(dist.DistError):
                self._tell(exit_code)
                self._meeting.await_acknowledged(wait=wait)

    def _tell(self, what: _Work | int) -> None:
        self._told = True
        self._meeting.tell(what)


def lead(place: Place, run: Callable[[Leader], int], report: Callable[[GooseError], None]) -> int:
    """Rank 0: `run` the command, and end the others as it ends; the exit code. `report` shows an error to the user."""

    def whole() -> int:
        # Before all else: the others wait for it, and what comes next may take hours.
        leader = Leader(place, Meeting(place))
        try:
            exit_code = run(leader)
        except KeyboardInterrupt:  # the others have had the signal as well
            leader.dismiss(1, wait=False)
            raise
        except BaseException as error:
            leader.dismiss(error.exit_code if isinstance(error, GooseError) else 1)
            raise
        leader.dismiss(exit_code)
        return exit_code

    return _ended(place, whole, report)


def follow(place: Place, report: Callable[[GooseError], None]) -> int:
    """Any other rank: wait for what rank 0 has to say, take part in the run, and end with it; the exit code."""
    duties = AdoptedDuties(place)
    duties.watch.start()

    def part() -> int:
        meeting = Meeting(place)
        work: _Work | int = meeting.hear()
        if isinstance(work, int):
            # The starter may end this rank as soon as rank 0 is gone; it goes by itself, with the same code.
            duties.deaf = True
            meeting.acknowledge()
            _leave(work)
        _take_part(place, meeting, work, duties)
        return 0

    return _ended(place, part, report)


def _ended(place: Place, run: Callable[[], int], report: Callable[[GooseError], None]) -> int:
    """The exit code of `run`; where it fails, the process ends here, after one rank has told the user."""
    if place.ends_with_parent:
        die_with(os.getppid())
    try:
        return run()
    except KeyboardInterrupt:  # of rank 0, before it trains
        raise
    except SaidElsewhere as error:
        _leave(error.exit_code)
    except GooseError as error:
        if place.rank == 0 or not isinstance(error, Interrupted):
            report(error)
        _leave(error.exit_code)
    except dist.DistError as error:
        report(WorkerError(f"rank {place.rank}: {_absent(place)}: {str(error).splitlines()[0]}"))
    except BaseException:
        traceback.print_exc()
    _leave(1)


def _absent(place: Place) -> str:
    if place.starter_listens:
        return f"{place.starter} does not listen at {place.host}:{place.port}, or rank 0 ended; see what rank 0 wrote"
    return f"rank 0 does not listen at {place.host}:{place.port}, or ended; see what it wrote"


def _take_part(place: Place, meeting: Meeting, work: _Work, duties: AdoptedDuties) -> None:
    """This rank's part in the run; raises what it ended by: Interrupted, or an error for the user on one rank."""
    duties.enlist(work.setup)
    meeting.await_all_ready()
    world = {"store": meeting.world(work.spec.timeout_seconds), "rank": place.rank, "world_size": place.world_size}
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
                **world,
            )
        except BaseException as error:
            raise outcome(duties.fail(error), work.spec, work.setup) from None
    if duties.stopped_by:
        raise Interrupted(duties.stopped_by, stopped=True)


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


def _leave(exit_code: int) -> NoReturn:
    """End at once: tearing down a world in which ranks are missing can hang."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
