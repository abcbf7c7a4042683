"""The process that forks ranks for `run_ranks`, what a rank does there, and how functions of test files travel.

It exists apart from the test's own process because a fork is safe only of a process that never computed with threads.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import datetime
import faulthandler
import gc
import importlib
import importlib.util
import io
import os
import pickle
import random
import shutil
import signal
import socket
import sys
import time
import traceback
import types
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

_PRELOAD = (
    "numpy",
    "torch.distributed",
    "torch.distributed.pipelining",
    "torch.distributed.device_mesh",
    "torch.optim",
    "transformers.models.gpt2.modeling_gpt2",
)
_PR_SET_PDEATHSIG = 1
_MAX_RANKS = 64
_MARGIN_SECONDS = 30  # so that the caller's limit comes first, which says where each rank hangs


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call, the same for every rank: `call` is the dumped (function, arguments)."""

    store: str
    working_directory: str
    timeout_seconds: float
    search_path: list[str]
    call: bytes


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a rank reports: its dumped result, or the text of its traceback and when (monotonic clock) it failed."""

    payload: bytes = b""
    error: str | None = None
    type_name: str = ""
    at: float = 0.0

    def result(self) -> Any:
        return pickle.loads(self.payload)


# ---- functions of files that are on no search path, as pytest's importlib mode imports them


def dump(value: Any) -> bytes:
    """Pickle `value`; functions and classes of files that no import by name is sure to find go by file and name."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, (types.FunctionType, type)):
            return NotImplemented
        module = sys.modules.get(value.__module__)
        file = getattr(module, "__file__", None)
        if file is None or _found_by_name(value.__module__, file):
            return NotImplemented
        if "<" in value.__qualname__:
            raise ValueError(f"{value.__qualname__} cannot be sent to ranks: define it at the top level of its module")
        return _from_file, (value.__module__, file, value.__qualname__)


def _found_by_name(module: str, file: str) -> bool:
    return module.partition(".")[0] == "gooseslo" or file.startswith((sys.prefix, sys.base_prefix))


def _from_file(module_name: str, file: str, qualified_name: str) -> Any:
    """The object of that name in `file`, which is loaded once, under the name it has in the caller's process."""
    name = "__rank_main__" if module_name == "__main__" else module_name  # so that its main guard does not run
    module = sys.modules.get(name)
    if module is None or getattr(module, "__file__", None) != file:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None, file
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    found: Any = module
    for part in qualified_name.split("."):
        found = getattr(found, part)
    return found


# ---- the server


def serve(control_fd: int, folder: str) -> None:
    """Fork, kill and account for ranks as the socket asks, until it closes; then take everything along."""
    import torch

    torch.set_num_threads(1)
    for name in _PRELOAD:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a rank then neither walks nor copies what all share
    control = socket.socket(fileno=control_fd)
    living: set[int] = set()
    parent_pid = os.getppid()
    while os.getppid() == parent_pid:
        if not wait([control], timeout=1.0):
            continue
        message, fds, _, _ = _receive(control)
        if not message:
            break
        kind, body = message[:1], message[1:]
        if kind == b"F":
            pids = _fork_ranks(fds, control, folder)
            living.update(pids)
            control.send(b" ".join(b"%d" % pid for pid in pids))
        elif kind == b"S":
            living.discard(int(body))
            control.send(b"%d" % _ended(int(body)))
        elif kind == b"K":
            for pid in living.intersection(int(word) for word in body.split()):
                _kill(pid)
                living.discard(pid)
            control.send(b"K")
    for pid in living:
        _kill(pid)
    shutil.rmtree(folder, ignore_errors=True)


def _receive(control: socket.socket) -> tuple[bytes, list[int], int, Any]:
    size = array.array("i").itemsize
    try:
        return socket.recv_fds(control, 4096, _MAX_RANKS * size)
    except ConnectionResetError:
        return b"", [], 0, None


def _ended(pid: int) -> int:
    """The exit code of a rank whose socket closed; minus the signal's number where one ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _fork_ranks(fds: list[int], control: socket.socket, folder: str) -> list[int]:
    server_pid = os.getpid()
    pids = []
    for rank, fd in enumerate(fds):
        pid = os.fork()
        if pid == 0:
            control.close()
            for other in fds:
                if other != fd:
                    os.close(other)
            _rank_main(rank, len(fds), Connection(fd), server_pid, Path(folder) / f"{os.getpid()}.txt")
        pids.append(pid)
    for fd in fds:
        os.close(fd)
    return pids


# ---- a rank


def _rank_main(rank: int, world_size: int, connection: Connection, server_pid: int, output: Path) -> None:
    """Serve cases until the socket closes. Never returns."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server_pid:
        os._exit(1)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=False)
    while True:
        try:
            case = connection.recv()
        except (EOFError, ConnectionResetError):
            os._exit(0)
        os.ftruncate(file, 0)
        connection.send(_run_case(case, rank, world_size))


def _run_case(case: Case, rank: int, world_size: int) -> Outcome:
    import torch.distributed as dist

    try:
        if dist.is_initialized():  # only now: a rank that left early would break the collectives of those still at it
            dist.destroy_process_group()
        _reset(case)
        function, arguments = pickle.loads(case.call)
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(case.store, world_size),  # type: ignore[attr-defined]
            rank=rank,
            world_size=world_size,
            timeout=datetime.timedelta(seconds=case.timeout_seconds + _MARGIN_SECONDS),
        )
        outcome = Outcome(payload=dump(function(rank, world_size, *arguments)))
    except BaseException as error:  # whatever it is, the parent is told, and ends the pool
        outcome = Outcome(error=traceback.format_exc(), type_name=type(error).__name__, at=time.monotonic())
    sys.stdout.flush()
    sys.stderr.flush()
    return outcome


def _reset(case: Case) -> None:
    """The same start for every case, whatever the one before it left."""
    import numpy as np
    import torch

    gc.collect()
    sys.path[:] = case.search_path
    os.chdir(case.working_directory)
    torch.set_num_threads(1)
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
