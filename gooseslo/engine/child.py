"""A function in a process of its own: for what the parent must not do itself, since it will fork the workers."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

Result = TypeVar("Result")


class ChildError(Exception):
    """The function failed, or its process died; says how in a user's words."""


def in_child(function: Callable[..., Result], *args: Any, seconds: float) -> Result:
    """`function(*args)` in a forked process that is gone afterwards; ChildError where it fails or takes longer.

    There alone CUDA is initialised, and several threads compute.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sender, function, args), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            raise ChildError(f"took longer than {seconds:.0f} seconds")
        try:
            result, error = receiver.recv()
        except EOFError:
            process.join()
            raise ChildError(f"its process ended with {_ending(process.exitcode)}") from None
    finally:
        process.kill()
        process.join()
        receiver.close()
    if error is not None:
        raise ChildError(error)
    return result  # type: ignore[no-any-return]


def _serve(sender: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Ctrl-C reaches this process too; its parent ends it. What else ends it must not run the parent's handlers.
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    try:
        sender.send((function(*args), None))
    except BaseException as error:
        sender.send((None, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"))


def _ending(exit_code: int | None) -> str:
    return f"signal {-exit_code}" if exit_code is not None and exit_code < 0 else f"exit code {exit_code}"
