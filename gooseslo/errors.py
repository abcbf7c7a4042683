"""Errors that a user can cause, each with the words a user needs. No other module of ours is imported here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing wrong with what the user gave: the key as typed, its value, the rule, and the way out."""

    key: str
    rule: str
    value: Any = None
    way_out: str = ""

    def __str__(self) -> str:
        head = self.key if self.value is None else f"{self.key}={self.value}"
        lines = [f"{head}: {self.rule}"]
        if self.way_out:
            lines.append(f"  {self.way_out}")
        return "\n".join(lines)


class GooseError(Exception):
    """Base of every error whose message is meant for the user; `exit_code` is what the command ends with."""

    exit_code = 2


class ConfigError(GooseError):
    """The command line or a configuration file is wrong; carries every fault that was found."""

    def __init__(self, faults: Fault | Iterable[Fault]):
        self.faults = [faults] if isinstance(faults, Fault) else list(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class PolicyError(GooseError):
    """A policy does not fit its model: a name resolves to nothing or twice, or a parameter is unclaimed."""


class TopologyError(GooseError):
    """A tp x pp x dp layout that the model or the machine cannot have."""


class DataError(GooseError):
    """A data file or tokenizer is missing, empty, unreadable or does not fit the model; names file and line."""


class DataWriteError(DataError):
    """Prepared data could not be written: a failure at run time. What was done is kept, to be gone on with."""

    exit_code = 1


class CheckpointError(GooseError):
    """A checkpoint is absent, incomplete, or of another model."""


class SaveError(CheckpointError):
    """A checkpoint could not be written: a failure at run time. The earlier ones are as they were."""

    exit_code = 1


class PeerSaveError(SaveError):
    """The same on the ranks that did their part: the cause is on another rank, which the message names."""


class KernelError(GooseError):
    """A fused kernel was demanded that this machine or shape cannot run."""


class ServeError(GooseError):
    """The server cannot start or take a request."""


class WorkerError(GooseError):
    """A worker process failed at run time; the message ends with its own traceback or signal."""

    exit_code = 1
