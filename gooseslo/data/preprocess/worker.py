"""A worker process: takes chunks from its parent, gives back their tokens, and ends when the parent does.

Started as a program of its own, so that it imports only what encoding needs and never the caller's main module.
"""

from __future__ import annotations

import os
import queue
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection

from gooseslo.data.preprocess.work import Chunk, Task, encode_chunk


@dataclass(frozen=True)
class Failure:
    """An error of the worker's own."""

    traceback: str


def main(descriptor: int) -> None:
    """Serve the parent at the other end of this connection: first comes the task, then chunks, until it is closed."""
    connection = Connection(descriptor)
    chunks: queue.SimpleQueue[Chunk] = queue.SimpleQueue()
    try:
        task: Task = connection.recv()
        # Two threads: the parent never waits for a worker that computes, and its end is noticed at once. It is this one
        # that receives, since in the main thread glibc's allocator makes encoding slower by a fifth.
        threading.Thread(target=_encode, args=(connection, chunks, task), daemon=True).start()
        while True:
            chunks.put(connection.recv())
    except (EOFError, OSError):  # the parent has gone, or wants no more
        os._exit(0)


def _encode(connection: Connection, chunks: queue.SimpleQueue[Chunk], task: Task) -> None:
    try:
        encoder = task.make_encoder()
        while True:
            connection.send(encode_chunk(chunks.get(), task, encoder))
    except OSError:  # the parent has gone
        os._exit(0)
    except BaseException:  # a panic of the tokenizer's Rust code is no Exception
        connection.send(Failure(traceback.format_exc()))
        os._exit(1)
