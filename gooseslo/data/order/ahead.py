"""Threads that read batches ahead, and that a process which ends need not wait for: a disk may never answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

_PATIENCE_SECONDS = 5.0


class ReadingThreads:
    """Does work in the order given. (Those of `concurrent.futures` are waited for at exit, without bound.)"""

    def __init__(self, num_threads: int):
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, name=f"data-{number}", daemon=True) for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """What `work` will give or raise; work that is cancelled before its turn is not done."""
        future: Future[Any] = Future()
        self._work.put((future, work))
        return future

    def close(self, patience_seconds: float | None = None) -> None:
        """End the threads when they have done what was given to them, or go on without those that take too long."""
        for _ in self._threads:
            self._work.put(None)
        deadline = time.monotonic() + (_PATIENCE_SECONDS if patience_seconds is None else patience_seconds)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _serve(self) -> None:
        while (task := self._work.get()) is not None:
            future, work = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # raised where the result is asked for
                future.set_exception(error)
            del task, future, work  # else an idle thread keeps the last batch
