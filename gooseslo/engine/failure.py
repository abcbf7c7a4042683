"""How a worker says why it failed, and how the parent finds the cause among what all workers say.

The first failure that reaches the parent is seldom the cause: when one rank goes, the others fail within milliseconds
in whatever collective they are in. So each worker writes down its own failure, and the parent looks at all of them.
"""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import socket
import textwrap
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gooseslo import errors
from gooseslo.engine.run_folder import write_atomically
from gooseslo.errors import GooseError, PeerSaveError, WorkerError

_CONNECTION = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|timed out|timeout|gloo|nccl|tcpstore|socket", re.IGNORECASE
)
_SUMMARY_CHARACTERS = 160
_OF_THE_PROGRAM = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why one worker failed: an exception it wrote down (`text` is its traceback), or how its process ended."""

    rank: int
    exit_code: int
    """As of a process: minus the signal's number where one ended it."""
    type_name: str = ""
    message: str = ""
    text: str = ""
    in_collective: bool = False
    """It failed while it waited for other ranks, so that another rank may be the cause."""
    user_error: bool = False
    """A GooseError about what the user gave: its message is all that the user needs."""
    at: float = 0.0
    """Monotonic clock of the machine, seconds."""

    @property
    def signal(self) -> signal.Signals | None:
        return signal.Signals(-self.exit_code) if self.exit_code < 0 else None

    def ending(self) -> str:
        """How the process ended, in words."""
        if self.signal is None:
            return f"failed with exit code {self.exit_code}"
        hint = "; if nobody sent it, the machine ran out of memory" if self.signal is signal.SIGKILL else ""
        return f"was killed by signal {self.signal.value} ({self.signal.name}){hint}"

    def summary(self) -> str:
        """The failure in one line."""
        if not self.type_name:
            return self.ending()
        first_line = next(iter(self.message.strip().splitlines()), "")
        return textwrap.shorten(f"{self.type_name}: {first_line}", _SUMMARY_CHARACTERS, placeholder=" ...")


def describe(error: BaseException, rank: int) -> Failure:
    """The failure that an exception in a worker's main function is."""
    user_error = isinstance(error, GooseError) and error.exit_code == 2
    return Failure(
        rank=rank,
        exit_code=error.exit_code if isinstance(error, GooseError) else 1,
        type_name=type(error).__name__,
        message=str(error),
        text="".join(traceback.format_exception(error)),
        in_collective=isinstance(error, PeerSaveError) or (not user_error and is_of_a_collective(error)),
        user_error=user_error,
        at=time.monotonic(),
    )


def is_of_a_collective(error: BaseException) -> bool:
    """Whether the exception, or one it came from, is what a rank meets when another rank is gone or late."""
    seen: BaseException | None = error
    while seen is not None:
        # torch.distributed's own errors are RuntimeErrors too, and gloo has no class of its own
        if isinstance(seen, (RuntimeError, ConnectionError)) and _CONNECTION.search(str(seen)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def write(failure: Failure, folder: Path) -> None:
    """Leave the failure where the parent looks for it."""
    write_atomically(folder / f"rank-{failure.rank}.json", json.dumps(dataclasses.asdict(failure)))


def read_all(folder: Path) -> dict[int, Failure]:
    """The failures that workers wrote down, by rank."""
    failures = (Failure(**json.loads(path.read_text())) for path in sorted(folder.glob("rank-*.json")))
    return {failure.rank: failure for failure in failures}


def root_cause(failures: Sequence[Failure]) -> Failure:
    """The failure that the others follow from.

    A kill from outside comes first, then the earliest exception of a rank's own, then a crash (the survivors of a
    failure may abort), and a failed collective only where there is nothing else.
    """

    def order(failure: Failure) -> tuple[int, float]:
        if failure.signal is not None:
            return (2 if failure.signal in _OF_THE_PROGRAM else 0), failure.at
        return (3 if failure.in_collective else 1), failure.at

    return min(failures, key=order)


def to_error(failures: Sequence[Failure], *, coordinates: Sequence[str], logs: Mapping[int, Path]) -> GooseError:
    """What the parent raises; last in it the cause's own traceback, once, and which rank that was.

    A user's error (of DataError, say) is given back as the class it was raised as, with its message alone.
    """
    cause = root_cause(failures)
    if cause.user_error:
        return _user_error(cause)
    parts = []
    others = [failure for failure in sorted(failures, key=lambda failure: failure.rank) if failure is not cause]
    if others:
        parts.append("failed after it, as a consequence:")
        parts += [f"  rank {failure.rank} ({coordinates[failure.rank]}): {failure.summary()}" for failure in others]
    parts.append("logs:")
    parts += [f"  rank {rank}: {path}" for rank, path in logs.items()]
    if cause.text:
        parts.append(cause.text.rstrip())
    parts.append(f"rank {cause.rank} ({coordinates[cause.rank]}) on {socket.gethostname()} {cause.ending()}")
    return WorkerError("\n".join(parts))


def _user_error(failure: Failure) -> GooseError:
    kind = getattr(errors, failure.type_name, GooseError)
    if not issubclass(kind, GooseError) or kind is errors.ConfigError:  # a ConfigError is made of faults, not of text
        kind = GooseError
    error: GooseError = kind(failure.message)
    error.exit_code = failure.exit_code
    return error
