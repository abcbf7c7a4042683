"""Run one function on several ranks, so that a test of distributed code is as short and as quick as any other.

A server process (see `rank_server`) imports torch and transformers once and forks the ranks; the pool of each world
size is kept, and every case gets a fresh gloo world on it in some 50 ms.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from gooseslo.testing.rank_server import Case, Outcome, dump

_GRACE_SECONDS = 0.3  # after a first failure, for the failures that follow from it
_STACK_SECONDS = 0.5  # for hanging ranks to write where they hang
_FORK_SECONDS = 60.0


class RankError(Exception):
    """A rank raised, died or hung; `rank` is the first that did, and the message holds its own traceback."""

    def __init__(self, message: str, *, rank: int, type_name: str):
        super().__init__(message)
        self.rank = rank
        self.type_name = type_name


def run_ranks(fn: Callable[..., Any], world_size: int, *args: Any, timeout_seconds: float = 60.0) -> list[Any]:
    """Call `fn(rank, world_size, *args)` on `world_size` gloo ranks and return the results by rank.

    `fn` is a module-level function, of any module that has a file. torch.distributed is initialised and torch has
    one thread; the random seeds are 0, and the working directory is the caller's. Raises RankError at the first rank
    that fails, dies, or is not done in `timeout_seconds`; the ranks are then killed, and the next call has new ones.
    """
    with _lock:
        pool = _pools.get(world_size)
        if pool is None:
            pool = _pools[world_size] = _Pool(_server(), world_size)
        try:
            return pool.run(fn, args, timeout_seconds)
        except BaseException:
            _pools.pop(world_size, None)
            pool.kill()
            raise


def close_ranks() -> None:
    """End every rank and the server; the next `run_ranks` starts anew. Called at exit."""
    with _lock:
        for server in _servers:
            server.close()
        _servers.clear()
        _pools.clear()


class _Server:
    """The process that ranks are forked from; it ends when its end of the socket does."""

    def __init__(self) -> None:
        self.owner_pid = os.getpid()
        self.folder = Path(tempfile.mkdtemp(prefix="gooseslo-ranks-"))
        self.socket, theirs = socket.socketpair()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = "import sys; from gooseslo.testing.rank_server import serve; serve(int(sys.argv[1]), sys.argv[2])"
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", command, str(theirs.fileno()), str(self.folder)],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C in the terminal is ours to handle
            )

    @property
    def alive(self) -> bool:
        return self.owner_pid == os.getpid() and self.process.poll() is None

    def fork(self, world_size: int) -> tuple[list[int], list[Connection]]:
        """The process ids of `world_size` new ranks and a connection to each."""
        pairs = [socket.socketpair() for _ in range(world_size)]
        socket.send_fds(self.socket, [b"F"], [theirs.fileno() for _, theirs in pairs])
        for _, theirs in pairs:
            theirs.close()
        self.socket.settimeout(_FORK_SECONDS)
        answer = self.socket.recv(4096)
        if not answer:
            raise RuntimeError("the server of the ranks ended; see its message above")
        return [int(pid) for pid in answer.split()], [Connection(ours.detach()) for ours, _ in pairs]

    def close(self) -> None:
        self.socket.close()
        if self.owner_pid == os.getpid():
            self.process.wait()
            shutil.rmtree(self.folder, ignore_errors=True)


class _Pool:
    """The ranks of one world size."""

    def __init__(self, server: _Server, world_size: int):
        self.server = server
        self.pids, self.connections = server.fork(world_size)

    def run(self, fn: Callable[..., Any], args: tuple[Any, ...], timeout_seconds: float) -> list[Any]:
        case = Case(
            store=str(self.server.folder / f"store-{time.monotonic_ns()}"),
            working_directory=os.getcwd(),
            timeout_seconds=timeout_seconds,
            search_path=list(sys.path),
            call=dump((fn, args)),
        )
        for connection in self.connections:
            connection.send(case)
        outcomes = self._collect(time.monotonic() + timeout_seconds)
        failures = {rank: outcome for rank, outcome in outcomes.items() if outcome.error}
        if failures:
            raise _failure(failures, self)
        if len(outcomes) < len(self.pids):
            raise self._timeout(outcomes, timeout_seconds)
        return [outcomes[rank].result() for rank in range(len(self.pids))]

    def _collect(self, deadline: float) -> dict[int, Outcome]:
        """What the ranks report until all have, or the deadline, or shortly after a first failure."""
        outcomes: dict[int, Outcome] = {}
        waiting = dict(zip(self.connections, range(len(self.connections))))
        while waiting and (remaining := deadline - time.monotonic()) > 0:
            for connection in wait(list(waiting), timeout=remaining):
                assert isinstance(connection, Connection)
                rank = waiting.pop(connection)
                try:
                    outcomes[rank] = connection.recv()
                except (EOFError, ConnectionResetError):
                    outcomes[rank] = Outcome(error=self._death(rank), type_name="Died", at=0.0)
                if outcomes[rank].error:
                    deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        return outcomes

    def _death(self, rank: int) -> str:
        """How a rank without a report ended, as its parent, the server, saw it."""
        self.server.socket.send(b"S%d" % self.pids[rank])
        status = int(self.server.socket.recv(64))
        if status < 0:
            return f"killed by signal {-status} ({signal.Signals(-status).name})"
        return f"ended with exit code {status} and no report"

    def _timeout(self, outcomes: dict[int, Outcome], timeout_seconds: float) -> RankError:
        late = [rank for rank in range(len(self.pids)) if rank not in outcomes]
        for rank in late:
            os.kill(self.pids[rank], signal.SIGUSR1)  # a rank then writes its stack to its output
        time.sleep(_STACK_SECONDS)
        parts = [f"ranks {late} of {len(self.pids)} not done after {timeout_seconds:g} s"]
        parts += [f"rank {rank} hangs at:\n{self.output(rank)}" for rank in late]
        return RankError("\n".join(parts), rank=late[0], type_name="Timeout")

    def output(self, rank: int) -> str:
        """The last lines that a rank wrote."""
        path = self.server.folder / f"{self.pids[rank]}.txt"
        return "\n".join(path.read_text(errors="replace").splitlines()[-40:]) if path.exists() else ""

    def kill(self) -> None:
        for connection in self.connections:
            connection.close()
        if self.server.alive:
            self.server.socket.send(b"K" + b" ".join(b"%d" % pid for pid in self.pids))
            self.server.socket.recv(64)


def _failure(failures: dict[int, Outcome], pool: _Pool) -> RankError:
    """The error of the rank that failed first; the others by one line each."""
    first = min(failures, key=lambda rank: failures[rank].at)
    outcome = failures[first]
    parts = [f"rank {first} of {len(pool.pids)}: {outcome.error}"]
    if text := pool.output(first):
        parts.append(f"output of rank {first}:\n{text}")
    parts += [
        f"rank {rank}, after it: {(other.error or '').strip().splitlines()[-1]}"
        for rank, other in sorted(failures.items())
        if rank != first
    ]
    return RankError("\n".join(parts), rank=first, type_name=outcome.type_name)


def _server() -> _Server:
    if _servers and not _servers[0].alive:
        _servers.pop().close()
        _pools.clear()
    if not _servers:
        _servers.append(_Server())
    return _servers[0]


_lock = threading.RLock()
_servers: list[_Server] = []  # none or one
_pools: dict[int, _Pool] = {}
atexit.register(close_ranks)
