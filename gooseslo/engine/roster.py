"""Which workers of a launch live: each signs in with its process and out when it is done, so that a dead one is seen.

The folder is the launch's own, in the run folder; workers of other machines are taken to live.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from gooseslo.staging import write_text

_TRAINING = "training"
_STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True)
class Member:
    """A worker's process; its start tells it from a later one of the same number."""

    rank: int
    pid: int
    start: int
    """Of the process, in clock ticks since the machine's."""
    host: str
    """The machine's name, for the user: several may share one."""
    machine: str
    """Where the process number counts: the machine since its start, and the container."""
    cores: tuple[int, ...]
    """Those that the process may use."""

    @property
    def is_local(self) -> bool:
        return self.machine == _machine()

    def state(self) -> str:
        """The kernel's letter for what the process does; "" where it is gone, "?" on another machine."""
        if not self.is_local:
            return "?"
        state, start = _state(self.pid)
        return "" if start != self.start or state in "ZX" else state

    def send(self, number: int) -> None:
        """Send the process a signal, if it still lives on this machine."""
        if self.is_local and self.state():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def sign_in(folder: Path, rank: int) -> None:
    """Say that the worker is there."""
    pid = os.getpid()
    member = Member(
        rank=rank,
        pid=pid,
        start=_state(pid)[1],
        host=socket.gethostname(),
        machine=_machine(),
        cores=tuple(sorted(os.sched_getaffinity(0))),
    )
    write_text(folder / f"member-{rank}", json.dumps(asdict(member)))


def sign_out(folder: Path, rank: int) -> None:
    """Say that the worker has done its work, so that its end is no failure."""
    folder.joinpath(f"member-{rank}").unlink(missing_ok=True)


def members(folder: Path) -> Iterator[Member]:
    """The workers that have signed in and not out, by rank."""
    found = []
    for path in folder.glob("member-*"):
        try:
            fields = json.loads(path.read_text())
            found.append(Member(**fields | {"cores": tuple(fields["cores"])}))
        except FileNotFoundError:  # it signs out in this moment
            continue
    yield from sorted(found, key=lambda member: member.rank)


def dead(folder: Path) -> list[Member]:
    """The workers that ended before their work was done."""
    return [member for member in members(folder) if not member.state()]


def share_of_cores(folder: Path) -> int:
    """How many cores this worker has for itself, once all have signed in: of those it may use its part.

    A launcher that binds ranks to cores has divided them already: only ranks that may use the same ones share them.
    """
    mine = tuple(sorted(os.sched_getaffinity(0)))
    sharers = sum(member.is_local and member.cores == mine for member in members(folder))
    return max(1, len(mine) // max(1, sharers))


def mark_training(folder: Path) -> None:
    """Say that training has begun: from here on there is something to save."""
    folder.joinpath(_TRAINING).touch()


def is_training(folder: Path) -> bool:
    return folder.joinpath(_TRAINING).exists()


def mark_stopped(folder: Path, number: int) -> None:
    """Say that all ranks stopped together on this signal, and saved."""
    write_text(folder / _STOPPED, str(number))


def stopped_by(folder: Path) -> int:
    """The signal that all ranks stopped on; 0: none."""
    try:
        return int(folder.joinpath(_STOPPED).read_text())
    except FileNotFoundError:
        return 0


@functools.cache
def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"


def _state(pid: int) -> tuple[str, int]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", -1
    return fields[0], int(fields[19])
