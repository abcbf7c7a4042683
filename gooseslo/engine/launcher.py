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
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from gooseslo.engine import failure
from gooseslo.engine.failure import Failure
from gooseslo.engine.worker import WorkerSetup, log_path, run_worker
from gooseslo.errors import GooseError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_MONITOR_SECONDS = 0.1
_AGENT_LOGGERS = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.multiprocessing.spawn")
_SHOW_CURSOR = "\x1b[?25h"


class Interrupted(GooseError):  # noqa: N818  (nothing is wrong)
    """The run was ended from outside by a signal to the parent; the exit code is the shell's for that signal."""

    def __init__(self, number: int):
        self.signal = signal.Signals(number)
        self.exit_code = 128 + number
        super().__init__(f"interrupted by {self.signal.name}")

    def add_hint(self, hint: str) -> None:
        """Say more to the user, below the message."""
        self.args = (f"{self}\n{hint}",)


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


def launch(spec: LaunchSpec, main: Callable[..., None], *args: Any) -> None:
    """Call `main(worker, *args)` in every worker and return when all are done.

    `main` and `args` must be picklable for CUDA. The caller must not have computed with more than one torch thread: a
    forked child would hang at its first operation. Raises WorkerError where a worker fails, the worker's own error
    where it is a user's (DataError and the like), and Interrupted after a signal; no worker is then left.
    """
    assert len(spec.coordinates) == spec.num_workers
    run_dir = spec.run_dir
    run_dir.joinpath("logs").mkdir(parents=True, exist_ok=True)
    scratch = run_dir / f".launch-{os.getpid()}"
    setup = WorkerSetup(
        run_dir=run_dir,
        failure_dir=scratch,
        device=spec.device,
        num_threads=_threads_per_worker(spec.num_workers),
        timeout_seconds=spec.timeout_seconds,
        parent_pid=os.getpid(),
        deterministic=spec.deterministic,
    )
    try:
        with _signals_raise(), _scratch_folder(scratch), _agent_log(run_dir), _no_child_left(), _frozen_objects():
            sys.stdout.flush()  # else a forked worker writes the same text again
            sys.stderr.flush()
            try:
                elastic_launch(_launch_config(spec, scratch), run_worker)(setup, main, args)
            except ChildFailedError as error:
                logs = {rank: log_path(spec.run_dir, rank) for rank in range(spec.num_workers)}
                failures = _all_failures(error, scratch)
                raise failure.to_error(failures, coordinates=spec.coordinates, logs=logs) from None
    except SignalException as error:
        raise Interrupted(error.sigval) from None
    finally:
        _free_terminal(failed=sys.exc_info()[0] is not None)


@contextlib.contextmanager
def _frozen_objects() -> Iterator[None]:
    """Keep a worker's garbage collector off this process's objects: their threads are not there to be joined."""
    gc.collect()
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
    )


def _all_failures(error: ChildFailedError, folder: Path) -> list[Failure]:
    """What workers wrote down, and how the one that the agent saw ended where it could write nothing."""
    failures = failure.read_all(folder)
    for rank, seen in error.failures.items():
        if rank not in failures:
            failures[rank] = Failure(rank=rank, exit_code=seen.exitcode, at=time.monotonic())
    return list(failures.values())


def _threads_per_worker(num_workers: int) -> int:
    """An equal share of this process's cores, unless the user has set it in the usual way."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    return max(1, len(os.sched_getaffinity(0)) // num_workers)


@contextlib.contextmanager
def _scratch_folder(path: Path) -> Iterator[None]:
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
    handler = logging.FileHandler(run_dir / "logs" / "launcher.log", delay=True)
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


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Turn signals into Interrupted until the agent has its own handlers, and give the caller's back afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _free_terminal(*, failed: bool) -> None:
    """Give the terminal its cursor back, on a line of its own, which a killed worker's live display cannot."""
    if sys.stdout.isatty():
        sys.stdout.write(_SHOW_CURSOR + "\n" * failed)
        sys.stdout.flush()
