"""Worker processes that encode chunks; results come in the order of the chunks, and a death is noticed at once."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from types import TracebackType

from gooseslo.data.preprocess.chunks import Placed
from gooseslo.data.preprocess.work import Encoded, Task
from gooseslo.data.preprocess.worker import Failure
from gooseslo.errors import WorkerError

_CHUNKS_PER_WORKER = 2
"""One is computed, one lies ready."""
_WINDOW_PER_WORKER = 4
"""Chunks between the first that is not yet done and the last that was given out: they are held in memory."""
_PROGRAM = """\
import sys
sys.path[:] = {path!r}
from gooseslo.data.preprocess.worker import main
main({descriptor})
"""


class Worker:
    """One process and the connection to it."""

    def __init__(self, number: int):
        self.number = number
        self.chunks: deque[tuple[int, Placed]] = deque()
        """What it has, the oldest first."""
        ours, theirs = socket.socketpair()
        with theirs:
            program = _PROGRAM.format(path=sys.path, descriptor=theirs.fileno())
            # A group of its own: Ctrl-C is for the parent, whose end ends the workers. One thread each: all cores
            # are taken by processes.
            self.process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
                process_group=0,
            )
        self.connection = Connection(ours.detach())

    def send(self, message: object) -> None:
        # Where it is dead, receiving from it will tell, with the reason.
        with contextlib.suppress(OSError):
            self.connection.send(message)

    def receive(self) -> Encoded:
        """The result of its oldest chunk; WorkerError if it died."""
        try:
            result = self.connection.recv()
        except (EOFError, OSError):
            raise WorkerError(self._death()) from None
        if isinstance(result, Failure):
            raise WorkerError(f"worker {self.number} failed{self._had()}\n{result.traceback.rstrip()}")
        assert isinstance(result, Encoded)
        return result

    def end(self) -> None:
        """Wait for its end; it ends when its connection is closed."""
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _death(self) -> str:
        code = self.process.wait()
        if code < 0:
            name = signal.Signals(-code).name
            how = f"was killed by {name}" + (" (as the system does when memory runs out)" if name == "SIGKILL" else "")
        else:
            how = f"ended with exit code {code}"
        return f"worker {self.number} (process {self.process.pid}) {how}{self._had()}"

    def _had(self) -> str:
        if not self.chunks:
            return ""
        placed = self.chunks[0][1]
        return f", while it had {placed.name}, {placed.chunk.lines}"


class Pool:
    """A context manager: workers are there inside it, and gone after it."""

    def __init__(self, task: Task, *, num_workers: int):
        self._task = task
        self._num_workers = num_workers
        self._workers: list[Worker] = []

    def __enter__(self) -> Pool:
        try:
            for number in range(self._num_workers):
                self._workers.append(Worker(number))
            for worker in self._workers:  # once all are starting
                worker.send(self._task)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    @property
    def process_ids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def encode(self, chunks: Iterator[Placed]) -> Iterator[tuple[Placed, Encoded]]:
        """Each chunk with its result, in order; WorkerError if a worker dies or fails."""
        given = due = 0
        exhausted = False
        done: dict[int, tuple[Placed, Encoded]] = {}
        window = _WINDOW_PER_WORKER * self._num_workers
        while True:
            while not exhausted and given - due < window and (worker := self._free()) is not None:
                placed = next(chunks, None)
                if placed is None:
                    exhausted = True
                    break
                worker.chunks.append((given, placed))
                worker.send(placed.chunk)
                given += 1
            if given == due:
                return
            for worker in self._heard():
                result = worker.receive()
                number, placed = worker.chunks.popleft()
                done[number] = (placed, result)
            while due in done:
                yield done.pop(due)
                due += 1

    def _free(self) -> Worker | None:
        """The worker with the fewest chunks, if it has room for one more."""
        worker = min(self._workers, key=lambda worker: len(worker.chunks))
        return worker if len(worker.chunks) < _CHUNKS_PER_WORKER else None

    def _heard(self) -> list[Worker]:
        """The workers that have something to say, waiting for one; an idle one can only say that it died."""
        ready = wait([worker.connection for worker in self._workers])
        return [worker for worker in self._workers if worker.connection in ready]

    def _end(self) -> None:
        for worker in self._workers:
            worker.connection.close()  # on which it ends
        for worker in self._workers:
            worker.end()
        self._workers = []
