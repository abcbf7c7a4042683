"""How a worker says why it failed, and how the parent finds the cause among what all workers say.

The first failure that reaches the parent is seldom the cause: when one rank goes, the others fail within milliseconds
in whatever collective they are in. So each worker writes down its own failure, and the parent looks at all of them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import socket
import textwrap
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from gooseslo import errors
from gooseslo.errors import GooseError, PeerSaveError, WorkerError
from gooseslo.staging import write_text

_CONNECTION = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|timed out|timeout|gloo|nccl|tcpstore|socket", re.IGNORECASE
)
_TIMEOUT = re.compile(r"timed out|timeout", re.IGNORECASE)
_OF_TORCH_DISTRIBUTED = f"torch{os.sep}distributed{os.sep}"
_STATES = {
    "T": "was stopped (by SIGSTOP, say)",
    "t": "was held by a debugger",
    "D": "hung in the kernel (a disk or a device does not answer)",
}
_ABSENT = "did not come to the collective that the others waited in"
_NCCL_TIMEOUT = "Watchdog caught collective operation timeout"
_TAIL_BYTES = 65536
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
    timed_out: bool = False
    """It failed because other ranks did not come to a collective in time."""
    missing: bool = False
    """It did not fail but was ended because others had; `text` is where it was, if it could still say so."""
    interrupted_by: int = 0
    """The signal that had asked the rank to save and stop; 0: none."""
    at: float = 0.0
    """Monotonic clock of the machine, seconds."""
    host: str = field(default_factory=socket.gethostname)
    """Where the rank ran."""

    @property
    def signal(self) -> signal.Signals | None:
        return signal.Signals(-self.exit_code) if self.exit_code < 0 else None

    def ending(self) -> str:
        """How the process ended, in words."""
        if not self.type_name and self.message:
            return self.message
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


def describe(error: BaseException, rank: int, *, interrupted_by: int = 0) -> Failure:
    """The failure that an exception in a worker's main function is."""
    user_error = isinstance(error, GooseError) and error.exit_code == 2
    in_collective = isinstance(error, PeerSaveError) or (not user_error and is_of_a_collective(error))
    return Failure(
        rank=rank,
        exit_code=error.exit_code if isinstance(error, GooseError) else 1,
        type_name=type(error).__name__,
        message=str(error),
        text="".join(traceback.format_exception(error)),
        in_collective=in_collective,
        user_error=user_error,
        timed_out=in_collective and _TIMEOUT.search("".join(map(str, _chain(error)))) is not None,
        interrupted_by=interrupted_by,
        at=time.monotonic(),
    )


def left_behind(frame: FrameType, rank: int) -> Failure:
    """What a rank that is ended for another's failure leaves: where its main thread was, below `run_main`."""
    stack = traceback.extract_stack(frame)
    begun = [index for index, call in enumerate(stack) if call.name == "run_main"]
    stack = traceback.StackSummary.from_list(stack[begun[-1] + 1 :] if begun else stack)  # above are launcher and agent
    return Failure(
        rank=rank,
        exit_code=1,
        message=f"{_ABSENT}: where it was stands above",
        text="Where it was (most recent call last):\n" + "".join(traceback.format_list(stack)),
        in_collective=any(_OF_TORCH_DISTRIBUTED in call.filename for call in stack),
        missing=True,
        at=time.monotonic(),
    )


def ended(rank: int, exit_code: int, log: Path) -> Failure:
    """A rank whose process ended so, without an exception that it could write down; `log` is where its output went.

    NCCL does not raise where a collective times out: a thread of its own says so in the log and aborts the process.
    """
    timed_out = exit_code == -signal.SIGABRT and _NCCL_TIMEOUT in _tail(log)
    return Failure(
        rank=rank,
        exit_code=exit_code,
        message="was aborted by NCCL, for a collective timed out" if timed_out else "",
        in_collective=timed_out,
        timed_out=timed_out,
        at=time.monotonic(),
    )


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def silent(rank: int, state: str, *, host: str) -> Failure:
    """What is known of a rank that had to be killed; `state` is the kernel's letter for what its process did."""
    message = f"{_ABSENT}: its process {_STATES.get(state, 'did not react to anything')}"
    return Failure(rank=rank, exit_code=-signal.SIGKILL, message=message, missing=True, at=time.monotonic(), host=host)


def vanished(rank: int, *, host: str) -> Failure:
    """A rank whose process is gone without a word, seen by one that is not its parent."""
    message = "is gone without a word, as a killed process is; if nobody killed it, the machine ran out of memory"
    return Failure(rank=rank, exit_code=-signal.SIGKILL, message=message, at=time.monotonic(), host=host)


def is_of_a_collective(error: BaseException) -> bool:
    """Whether the exception, or one it came from, is what a rank meets when another rank is gone or late."""
    # torch.distributed's own errors are RuntimeErrors too, and gloo has no class of its own
    kinds = (RuntimeError, ConnectionError)
    return any(isinstance(seen, kinds) and _CONNECTION.search(str(seen)) for seen in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and those it came from."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def write(failure: Failure, folder: Path) -> None:
    """Leave the failure where the parent looks for it."""
    write_text(folder / f"rank-{failure.rank}.json", json.dumps(dataclasses.asdict(failure)))


def read_all(folder: Path) -> dict[int, Failure]:
    """The failures that workers wrote down, by rank."""
    failures = (Failure(**json.loads(path.read_text())) for path in sorted(folder.glob("rank-*.json")))
    return {failure.rank: failure for failure in failures}


def root_cause(failures: Sequence[Failure]) -> Failure:
    """The failure that the others follow from.

    A kill from outside comes first, then the earliest exception of a rank's own, then a crash (the survivors of a
    failure may abort). Where ranks only waited in vain, it is the one they waited for: of those that did not fail
    themselves, one that could say nothing at all, or was elsewhere than in a collective.
    """
    waited_in_vain = any(failure.timed_out for failure in failures)

    def order(failure: Failure) -> tuple[int, float]:
        if failure.missing:
            return (6 if not waited_in_vain or failure.in_collective else 4 if failure.text else 3), failure.at
        if failure.signal is not None and not failure.timed_out:
            return (2 if failure.signal in _OF_THE_PROGRAM else 0), failure.at
        return (5 if failure.in_collective else 1), failure.at

    return min(failures, key=order)


def to_error(failures: Sequence[Failure], *, coordinates: Sequence[str], logs: Mapping[int, Path]) -> GooseError:
    """What the parent raises; last in it the cause's own traceback, once, and which rank that was.

    A user's error (of DataError, say) is given back as the class it was raised as, with its message alone.
    """
    cause = root_cause(failures)
    if cause.user_error:
        return _user_error(cause)
    parts = []
    others = [other for other in failures if other is not cause and not other.missing]
    if others:
        parts.append("waited for it in vain:" if cause.missing else "failed as a consequence of what stands last:")
        others.sort(key=lambda failure: failure.rank)
        parts += [f"  rank {failure.rank} ({coordinates[failure.rank]}): {failure.summary()}" for failure in others]
    parts.append("logs:")
    parts += [f"  rank {rank}: {path}" for rank, path in logs.items()]
    if cause.text:
        parts.append(cause.text.rstrip())
    parts.append(f"rank {cause.rank} ({coordinates[cause.rank]}) on {cause.host} {cause.ending()}")
    return WorkerError("\n".join(parts))


def _user_error(failure: Failure) -> GooseError:
    kind = getattr(errors, failure.type_name, GooseError)
    if not issubclass(kind, GooseError) or kind is errors.ConfigError:  # a ConfigError is made of faults, not of text
        kind = GooseError
    error: GooseError = kind(failure.message)
    error.exit_code = failure.exit_code
    return error
