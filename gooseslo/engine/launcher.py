"""Start the workers of a run on this machine and stay with them: no failure goes unreported, no process stays.

torch's elastic agent runs inside this process. On CPU it forks, so that workers need not import torch again; CUDA does
not survive a fork, so there it spawns.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.popen_fork import Popen
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from gooseslo.engine import failure, roster
from gooseslo.engine.failure import Failure
from gooseslo.engine.interrupt import SAME_SIGNAL_SECONDS, STOP_SIGNALS, Interrupted, handled
from gooseslo.engine.run_folder import LOGS
from gooseslo.engine.watchdog import Watchdog
from gooseslo.engine.worker import WorkerSetup, log_path, run_worker
from gooseslo.errors import GooseError

_MONITOR_SECONDS = 0.1
_AGENT_LOGGERS = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.multiprocessing.spawn")
_AGENT_SIGNALS = "SIGQUIT"  # ends all at once; what the others mean is ours to say
_SHOW_CURSOR = "\x1b[?25h"


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """Workers to start; `coordinates` says by rank where in the mesh each is, as in `tp=0 pp=1 dp=0`."""

    num_workers: int
    run_dir: Path
    device: Literal["cpu", "cuda"]
    timeout_seconds: float
    shutdown_seconds: int
    coordinates: tuple[str, ...]
    deterministic: bool = False
    """Workers compute with operations that give the same bits every time."""

    def worker_setup(self, scratch: Path, *, parent_pid: int) -> WorkerSetup:
        """What each worker is told; `scratch` is the launch's own folder."""
        return WorkerSetup(
            run_dir=self.run_dir,
            failure_dir=scratch,
            device=self.device,
            timeout_seconds=self.timeout_seconds,
            shutdown_seconds=self.shutdown_seconds,
            parent_pid=parent_pid,
            deterministic=self.deterministic,
        )


def launch(spec: LaunchSpec, main: Callable[..., None], *args: Any) -> None:
    """Call `main(worker, *args)` in every worker and return when all are done.

    `main` and `args` must be picklable for CUDA. The caller must not have computed with more than one torch thread: a
    forked child would hang at its first operation. Raises WorkerError where a worker fails, the worker's own error
    where it is a user's (DataError and the like), and Interrupted after a signal; no worker is then left.
    """
    assert len(spec.coordinates) == spec.num_workers
    run_dir = spec.run_dir
    run_dir.joinpath(LOGS).mkdir(parents=True, exist_ok=True)
    scratch = run_dir / f".launch-{os.getpid()}"
    setup = spec.worker_setup(scratch, parent_pid=os.getpid())
    watchdog = Watchdog(scratch)
    interruption = _Interruption(spec, watchdog, scratch)
    try:
        with (
            handled(interruption.on_signal),
            scratch_folder(scratch),
            _agent_log(run_dir),
            _no_child_left(),
            _frozen_objects(),
            watchdog,
        ):
            sys.stdout.flush()  # else a forked worker writes the same text again
            sys.stderr.flush()
            try:
                elastic_launch(_launch_config(spec, scratch), run_worker)(setup, main, args)
            except ChildFailedError as error:
                raise interruption.or_else(_all_failures(error, spec, scratch, watchdog.silent)) from None
            if stopped_by := roster.stopped_by(scratch):
                raise Interrupted(interruption.number or stopped_by, stopped=True)
    except _Ended as error:
        raise error.interrupted from None
    except SignalException as error:
        raise Interrupted(error.sigval) from None
    finally:
        _free_terminal(failed=sys.exc_info()[0] is not None)


class _Ended(KeyboardInterrupt):
    """A signal's way out of torch's agent, which takes any Exception for an error to be logged."""

    def __init__(self, interrupted: Interrupted):
        self.interrupted = interrupted
        super().__init__()


class _Interruption:
    """What signals to the parent do: the first asks workers that train to save and stop, the next ends them at once."""

    def __init__(self, spec: LaunchSpec, watchdog: Watchdog, scratch: Path):
        self.number = 0
        self._spec, self._watchdog, self._scratch = spec, watchdog, scratch
        self._parent, self._first_at, self._reason = os.getpid(), 0.0, ""
        self._ended = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handler of the parent's signals; workers inherit it and have their own soon after their start."""
        if os.getpid() != self._parent:
            os._exit(128 + number)
        now = time.monotonic()
        if not self.number:
            self.number, self._first_at = number, now
            if roster.is_training(self._scratch):
                seconds = self._spec.shutdown_seconds
                self._reason = f"not all workers could save and end within launcher.shutdown_seconds={seconds}"
                self._watchdog.allow(seconds)
                self._watchdog.tell(number)
                return
        elif now - self._first_at < SAME_SIGNAL_SECONDS:
            return
        else:
            self._reason = "the second signal ended it at once"
        self._ended = True
        self._watchdog.condemn()
        if not _in_fork_hook(frame):  # what is raised there is only printed; the workers end all the same
            raise _Ended(Interrupted(self.number, reason=self._reason))

    def or_else(self, failures: list[Failure]) -> GooseError:
        """The error to raise where workers failed: Interrupted where that happened on the way out."""
        interrupted_by = self.number or max(found.interrupted_by for found in failures)
        logs = {rank: log_path(self._spec.run_dir, rank) for rank in range(self._spec.num_workers)}
        if not interrupted_by:
            return failure.to_error(failures, coordinates=self._spec.coordinates, logs=logs)
        if self._ended:  # and what was raised for it is lost
            return Interrupted(interrupted_by, reason=self._reason)
        cause = failure.root_cause(failures)
        killed = self._reason and self._watchdog.silent and (cause.missing or cause.in_collective)
        reason = self._reason if killed else f"not saved: rank {cause.rank}: {cause.summary()}"
        return Interrupted(interrupted_by, reason=reason)


def _in_fork_hook(frame: FrameType | None) -> bool:
    """Whether this is one of the functions that Python calls around os.fork, or called by one."""
    forking, forked = Popen._launch.__code__, BaseProcess._bootstrap.__code__  # type: ignore[attr-defined]
    caller = frame and frame.f_back
    while caller is not None and caller.f_code not in (forking, forked):
        caller = caller.f_back
    return caller is not None and caller.f_code is forking


@contextlib.contextmanager
def _frozen_objects() -> Iterator[None]:
    """Keep a worker's garbage collector off this process's objects: their threads are not there to be joined.

    Signals wait meanwhile: what a handler raises while an object is finalised is lost.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        gc.collect()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _launch_config(spec: LaunchSpec, scratch: Path) -> LaunchConfig:
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=spec.num_workers,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # a free port, so that two runs on one machine never meet
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=_MONITOR_SECONDS,
        start_method="spawn" if spec.device == "cuda" else "fork",
        logs_specs=DefaultLogsSpecs(log_dir=str(scratch / "agent")),
        shutdown_timeout=spec.shutdown_seconds,
        signals_to_handle=_AGENT_SIGNALS,
    )


def _all_failures(
    error: ChildFailedError, spec: LaunchSpec, folder: Path, silent: Mapping[int, Failure]
) -> list[Failure]:
    """What workers wrote down, how those ended that the agent saw end, and who had to be killed."""
    failures = {**silent, **failure.read_all(folder)}
    for rank, seen in error.failures.items():
        if rank not in failures:
            failures[rank] = failure.ended(rank, seen.exitcode, log_path(spec.run_dir, rank))
    return list(failures.values())


@contextlib.contextmanager
def scratch_folder(path: Path) -> Iterator[None]:
    """A folder for what workers and agent write for the launcher; those of launchers that were killed go as well."""
    for old in path.parent.glob(".launch-*"):
        shutil.rmtree(old, ignore_errors=True)
    path.mkdir()
    try:
        yield
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _no_child_left() -> Iterator[None]:
    """Kill what the agent could not end, as when a second signal interrupts it while it waits for the workers."""
    before = set(multiprocessing.active_children())
    try:
        yield
    finally:
        for process in set(multiprocessing.active_children()) - before:
            process.kill()
            process.join()


@contextlib.contextmanager
def _agent_log(run_dir: Path) -> Iterator[None]:
    """Send the agent's own messages to a file: what the user must know is in the error that we raise."""
    handler = logging.FileHandler(run_dir / LOGS / "launcher.log", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in _AGENT_LOGGERS]
    propagated = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, propagate in zip(loggers, propagated, strict=True):
            logger.removeHandler(handler)
            logger.propagate = propagate
        handler.close()


def _free_terminal(*, failed: bool) -> None:
    """Give the terminal its cursor back, on a line of its own, which a killed worker's live display cannot."""
    if sys.stdout.isatty():
        sys.stdout.write(_SHOW_CURSOR + "\n" * failed)
        sys.stdout.flush()
