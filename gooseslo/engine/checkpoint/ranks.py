"""Work that all ranks share and that fails on all of them together: a rank that waits for a failed one hangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from gooseslo.errors import PeerSaveError, SaveError

T = TypeVar("T")


class Ranks:
    """The ranks of a process group (None: all); a single one where torch.distributed is not initialised."""

    def __init__(self, group: dist.ProcessGroup | None = None):
        self._group = group
        self._distributed = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank(group) if self._distributed else 0
        self.size = dist.get_world_size(group) if self._distributed else 1

    def gather(self, value: T) -> list[T]:
        """Every rank's value, by rank. Collective."""
        if not self._distributed:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def each(self, action: Callable[[], T]) -> list[T]:
        """What `action` returns on each rank. Collective.

        If it fails on one, SaveError there, with the failure as its cause, and PeerSaveError on the others.
        """
        result, failure, cause = None, None, None
        try:
            result = action()
        except Exception as error:  # whatever it is, the others are waiting to hear of it
            failure, cause = str(error) or type(error).__name__, error
        outcomes = self.gather((result, failure))
        failures = [(rank, text) for rank, (_, text) in enumerate(outcomes) if text is not None]
        if cause is not None:
            raise SaveError(failure) from cause
        if failures:
            rank, text = failures[0]
            raise PeerSaveError(f"rank {rank}: {text}")
        return [value for value, _ in outcomes]  # type: ignore[misc]

    def first(self, action: Callable[[], T]) -> T:
        """What `action` returns on rank 0, given to all; fails as `each` does. Collective."""
        return self.each(lambda: action() if self.rank == 0 else None)[0]  # type: ignore[return-value]
