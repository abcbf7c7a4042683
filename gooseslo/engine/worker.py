"""One worker process: what is set up before a run's own code, and how the process ends.

The order matters: first what makes the process die with its parent, then where its output goes, and only then
anything that can fail or hang.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import faulthandler
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO

import torch
import torch.distributed as dist

from gooseslo.engine import failure, roster
from gooseslo.engine.interrupt import SignalWatch
from gooseslo.engine.run_folder import LOGS

_PR_SET_PDEATHSIG = 1
HOLD_SECONDS = 3.0
"""A worker that failed in a collective waits so long before it ends, so that the launcher sees the cause first."""
_POLL_SECONDS = 0.005


@dataclass(frozen=True, kw_only=True)
class Worker:
    """What a run's code knows of its process. `console` is the user's terminal, on rank 0 alone."""

    rank: int
    local_rank: int
    world_size: int
    run_dir: Path
    device: torch.device
    console: TextIO | None
    duties: Duties = field(repr=False)

    def signal_number(self) -> int:
        """The signal that asks this rank to save and stop; 0: none yet."""
        return self.duties.watch.number

    def begin_training(self) -> None:
        """From here on a signal is answered with a save; before, with the end. Collective over all workers."""
        dist.barrier()
        self.duties.begin_training()

    def end_training(self, stop_signal: int) -> None:
        """Say that all ranks stopped on this signal (0: on none), and part from them: no collective comes after.

        Collective over all workers, so that nobody waits for what one of them still does at its end.
        """
        self.duties.stopped_by = stop_signal
        self.duties.part()

    def seconds_left(self) -> float:
        """So long this rank may still take to end: without limit until a signal came."""
        watch = self.duties.watch
        return watch.first_at + self.duties.shutdown_seconds - time.monotonic() if watch.number else math.inf


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """What the parent decides for all workers; travels by pickle where workers are spawned."""

    run_dir: Path
    failure_dir: Path
    device: Literal["cpu", "cuda"]
    timeout_seconds: float
    shutdown_seconds: float
    parent_pid: int
    deterministic: bool = False


class Duties:
    """What a worker owes the launch around its run: to be on the roster, to hear signals, to end with its peers."""

    def __init__(self, rank: int, folder: Path | None = None, *, shutdown_seconds: float = 0.0):
        """`folder`: the launch's own; None until the rank is told. `shutdown_seconds`: to end in after a signal."""
        self.rank, self._folder, self.shutdown_seconds = rank, folder, shutdown_seconds
        self.by_torchrun = False
        """The command torchrun, not ours, made this process and its environment."""
        self.watch = SignalWatch(self._on_signal)
        self.stopped_by = 0
        self._failing = False

    @property
    def folder(self) -> Path:
        assert self._folder is not None, "the rank has no launch yet"
        return self._folder

    def begin(self) -> None:
        """Sign in, and take the signals of the process; in the main thread, once the output is where it belongs."""
        self.watch.start()
        roster.sign_in(self.folder, self.rank)

    def begin_training(self) -> None:
        if self.rank == 0:
            roster.mark_training(self.folder)

    def part(self) -> None:
        """Leave the world of ranks, unless that is done. Collective: nobody leaves while another is still receiving."""
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()

    def end(self) -> None:
        """The work is done."""
        if self.stopped_by and self.rank == 0:
            roster.mark_stopped(self.folder, self.stopped_by)
        roster.sign_out(self.folder, self.rank)

    def fail(self, error: BaseException) -> failure.Failure:
        """Write the failure down, and leave the launcher time to see another rank's first where that may be the cause.

        The caller ends the process at once: tearing down a world in which ranks are missing can hang.
        """
        self._failing = True
        found = failure.describe(error, self.rank, interrupted_by=self.watch.number)
        sys.stderr.write(found.text)
        if found.timed_out:
            faulthandler.dump_traceback(all_threads=True)
        with contextlib.suppress(OSError):  # on another machine rank 0 may have removed the folder, and have spoken
            failure.write(found, self.folder)
        if found.in_collective:
            time.sleep(HOLD_SECONDS)
        return found

    def _on_signal(self, number: int, again: bool) -> None:
        """Where a peer failed, this is its launcher ending the others: no save, for a rank is missing.

        Else nothing, for the parent decides what becomes of the run: the loop asks for the number.
        """
        if not self._failing and self.has_failed_peer():
            self.leave_with_peers()

    def has_failed_peer(self) -> bool:
        others = (member for member in roster.dead(self.folder) if member.rank != self.rank)
        return any(others) or any(rank != self.rank for rank in failure.read_all(self.folder))

    def leave_with_peers(self, *, exit_code: int = 1) -> None:
        """End the process because another failed; says where it was, should the others have waited for it."""
        try:
            faulthandler.dump_traceback(all_threads=True)
            frame = sys._current_frames()[threading.main_thread().ident or 0]
            if self.rank not in failure.read_all(self.folder):
                failure.write(failure.left_behind(frame, self.rank), self.folder)
        finally:
            os._exit(exit_code)


def log_path(run_dir: Path, rank: int) -> Path:
    """Where a worker's output goes."""
    return run_dir / LOGS / f"rank-{rank}.log"


def run_worker(setup: WorkerSetup, main: Callable[..., None], args: tuple[Any, ...]) -> None:
    """Set a launched process up, call `main(worker, *args)`, and end. Collective over all workers.

    A failure is written down for the launcher and ends the process at once.
    """
    rank = int(os.environ["RANK"])
    die_with(setup.parent_pid)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    console = redirect(log_path(setup.run_dir, rank), keep_console=rank == 0)
    duties = Duties(rank, setup.failure_dir, shutdown_seconds=setup.shutdown_seconds)
    duties.begin()
    _await_all_started(duties)
    try:
        run_main(setup, duties, main, args, local_rank=int(os.environ["LOCAL_RANK"]), console=console)
    except BaseException as error:  # whatever it is, the launcher must learn of it
        os._exit(duties.fail(error).exit_code)
    if console is not None:
        console.close()


def run_main(
    setup: WorkerSetup,
    duties: Duties,
    main: Callable[..., None],
    args: tuple[Any, ...],
    *,
    local_rank: int,
    console: TextIO | None,
    **meeting: Any,
) -> None:
    """Meet the other ranks, call `main(worker, *args)`, part from them. Collective.

    `meeting`: store, rank and world size for `init_process_group`, where the environment does not give them.
    """
    worker = _enter_world(setup, duties, local_rank, console, meeting)
    main(worker, *args)
    duties.part()
    duties.end()


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, even while it waits in C++ code."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it ended before the request
        os._exit(1)


def redirect(path: Path, *, keep_console: bool) -> TextIO | None:
    """Send this process's output, of C++ code too, to its log; return the old standard output where it is kept."""
    console = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8", errors="replace") if keep_console else None
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # `kill -USR1` shows where a rank is
    return console


def _await_all_started(duties: Duties) -> None:
    """Wait until the last worker is forked.

    As soon as one connects, a thread of the agent's store looks up its name, and holds the lock of libc's resolver the
    while. A worker forked in that moment would inherit the lock as held, and wait for ever at its own first look-up.
    """
    while len(list(duties.folder.glob("member-*"))) < int(os.environ["WORLD_SIZE"]):
        if duties.watch.number:  # one ended before it could sign in, and the agent ends the others
            duties.leave_with_peers()
        time.sleep(_POLL_SECONDS)


def _enter_world(
    setup: WorkerSetup, duties: Duties, local_rank: int, console: TextIO | None, meeting: dict[str, Any]
) -> Worker:
    timeout = datetime.timedelta(seconds=setup.timeout_seconds)
    num_threads = threads_wanted(os.environ, by_torchrun=duties.by_torchrun) or roster.share_of_cores(duties.folder)
    sys.stderr.write(f"rank {duties.rank}: {num_threads} torch threads\n")
    torch.set_num_threads(num_threads)
    if setup.deterministic:
        compute_deterministically()
    if setup.device == "cuda":
        # Where the starter shows each rank its own device alone, that is number 0.
        device = torch.device("cuda", local_rank if torch.cuda.device_count() > 1 else 0)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", timeout=timeout, device_id=device, **meeting)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo", timeout=timeout, **meeting)
    return Worker(
        rank=duties.rank,
        local_rank=local_rank,
        world_size=dist.get_world_size(),
        run_dir=setup.run_dir,
        device=device,
        console=console,
        duties=duties,
    )


def threads_wanted(environment: Mapping[str, str], *, by_torchrun: bool) -> int:
    """The number of threads that the user asks for in the usual way; 0: none.

    torchrun sets 1 where the user has set nothing, so from its ranks a 1 is no wish.
    """
    wanted = environment.get("OMP_NUM_THREADS", "")
    if not wanted.isdigit() or (by_torchrun and wanted == "1"):
        return 0
    return int(wanted)


def compute_deterministically() -> None:
    """Let torch take, or else refuse, operations by whether they give the same bits every time.

    Before anything computes: cuBLAS reads its variable when the first handle is made.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
