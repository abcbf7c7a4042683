"""One worker process: what is set up before a run's own code, and how the process ends.

The order matters: first what makes the process die with its parent, then where its output goes, and only then
anything that can fail or hang.
"""

from __future__ import annotations

import ctypes
import datetime
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

import torch
import torch.distributed as dist

from gooseslo.engine import failure

_PR_SET_PDEATHSIG = 1
_HOLD_SECONDS = 3.0
"""A worker that failed in a collective waits so long before it ends, so that the launcher sees the cause first."""
_POLL_SECONDS = 0.005
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True, kw_only=True)
class Worker:
    """What a run's code knows of its process. `console` is the user's terminal, on rank 0 alone."""

    rank: int
    local_rank: int
    world_size: int
    run_dir: Path
    device: torch.device
    console: TextIO | None


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """What the parent decides for all workers; travels by pickle where workers are spawned."""

    run_dir: Path
    failure_dir: Path
    device: Literal["cpu", "cuda"]
    num_threads: int
    timeout_seconds: float
    parent_pid: int
    deterministic: bool = False


def log_path(run_dir: Path, rank: int) -> Path:
    """Where a worker's output goes."""
    return run_dir / "logs" / f"rank-{rank}.log"


def run_worker(setup: WorkerSetup, main: Callable[..., None], args: tuple[Any, ...]) -> None:
    """Set the process up, call `main(worker, *args)`, and end. Collective over all workers.

    A failure is written down for the launcher and ends the process at once: tearing down a world in which ranks are
    missing can hang.
    """
    rank = int(os.environ["RANK"])
    _die_with(setup.parent_pid)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    console = _redirect(log_path(setup.run_dir, rank), keep_console=rank == 0)
    _await_all_started(setup.failure_dir, rank)
    try:
        worker = _enter_world(setup, rank, console)
        main(worker, *args)
        dist.barrier()  # nobody leaves while another is still receiving
        dist.destroy_process_group()
    except BaseException as error:  # whatever it is, the launcher must learn of it
        _fail(failure.describe(error, rank), setup.failure_dir)
    if console is not None:
        console.close()


def _die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, even while it waits in C++ code."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it ended before the request
        os._exit(1)


def _redirect(path: Path, *, keep_console: bool) -> TextIO | None:
    """Send this process's output, of C++ code too, to its log; return the old standard output where it is kept."""
    console = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8", errors="replace") if keep_console else None
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    faulthandler.enable()
    return console


def _await_all_started(folder: Path, rank: int) -> None:
    """Wait until the last worker is forked.

    As soon as one connects, a thread of the agent's store looks up its name, and holds the lock of libc's resolver the
    while. A worker forked in that moment would inherit the lock as held, and wait for ever at its own first look-up.
    """
    folder.joinpath(f"started-{rank}").touch()
    while len(list(folder.glob("started-*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(_POLL_SECONDS)


def _enter_world(setup: WorkerSetup, rank: int, console: TextIO | None) -> Worker:
    local_rank = int(os.environ["LOCAL_RANK"])
    timeout = datetime.timedelta(seconds=setup.timeout_seconds)
    torch.set_num_threads(setup.num_threads)
    if setup.deterministic:
        compute_deterministically()
    if setup.device == "cuda":
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", timeout=timeout, device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo", timeout=timeout)
    return Worker(
        rank=rank,
        local_rank=local_rank,
        world_size=dist.get_world_size(),
        run_dir=setup.run_dir,
        device=device,
        console=console,
    )


def compute_deterministically() -> None:
    """Let torch take, or else refuse, operations by whether they give the same bits every time.

    Before anything computes: cuBLAS reads its variable when the first handle is made.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def _fail(found: failure.Failure, folder: Path) -> None:
    """Write the failure down and end the process. Never returns."""
    failure.write(found, folder)
    sys.stderr.write(found.text)
    if found.in_collective:
        time.sleep(_HOLD_SECONDS)
    os._exit(found.exit_code)
