"""How adopted ranks speak before they have a process group: through a store, under keys of this attempt alone.

A launcher that starts its ranks again keeps its store, and somebody else's ranks may come to the same port: neither may
read what was meant for others.
"""

from __future__ import annotations

import pickle
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from gooseslo.engine.place import Place
from gooseslo.errors import ConfigError, Fault, WorkerError

_THERE, _WORK, _HEARD, _READY, _WORLD = "there", "work", "heard", "ready", "world"
_MEET_SECONDS = 300.0
"""So long the slowest rank may take to start."""
_HEAR_SECONDS = 60.0
_POLL_SECONDS = 0.02
_PREPARING = timedelta(days=7)  # rank 0 may tokenise for hours; where it ends, the connection does


class Meeting:
    """The store of one attempt's ranks, as one of them sees it."""

    def __init__(self, place: Place):
        """Open the store on rank 0, where the starter has none; the others wait until it is there.

        ConfigError where the port is taken, dist.DistError where nobody listens in time.
        """
        self._place = place
        listens = place.rank == 0 and not place.starter_listens
        try:
            store = dist.TCPStore(
                place.host,
                place.port,
                is_master=listens,
                timeout=timedelta(seconds=_MEET_SECONDS),
                wait_for_workers=False,
                multi_tenant=True,
            )
        except dist.DistNetworkError as error:
            if not (listens and "EADDRINUSE" in str(error)):
                raise
            rule = "another program listens at this port of this machine"
            way_out = "MASTER_PORT=N with a free port, in the environment of every rank"
            raise ConfigError(Fault(key="MASTER_PORT", value=place.port, rule=rule, way_out=way_out)) from None
        self._store = dist.PrefixStore(f"gooseslo/{place.attempt}", store)
        if place.rank == 0:
            self._store.set(_THERE, "yes")
        else:
            self._store.wait([_THERE], timedelta(seconds=_MEET_SECONDS))

    def tell(self, what: Any) -> None:
        """Rank 0: say what the others are to do; picklable."""
        self._store.set(_WORK, pickle.dumps(what))  # type: ignore[arg-type]

    def hear(self) -> Any:
        """Any other rank: wait for what rank 0 tells."""
        self._store.wait([_WORK], _PREPARING)
        return pickle.loads(self._store.get(_WORK))

    def acknowledge(self) -> None:
        """Any other rank: say that it heard."""
        self._store.add(_HEARD, 1)

    def await_acknowledged(self, *, wait: bool = True) -> None:
        """Rank 0: wait a bounded time until all others have said that they heard."""
        deadline = time.monotonic() + (_HEAR_SECONDS if wait else 0)
        while self._store.add(_HEARD, 0) < self._place.world_size - 1 and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def await_all_ready(self) -> None:
        """Wait for the last rank's start: how long it takes to import is no matter of the run's own timeout."""
        deadline = time.monotonic() + _MEET_SECONDS
        ready, size = self._store.add(_READY, 1), self._place.world_size
        while ready < size:
            if time.monotonic() > deadline:
                came = f"only {ready} of {size} ranks came in {_MEET_SECONDS:g} s"
                raise WorkerError(f"rank {self._place.rank}: {came}")
            time.sleep(_POLL_SECONDS)
            ready = self._store.add(_READY, 0)

    def world(self, timeout_seconds: float) -> dist.Store:
        """The store in which the process group meets."""
        self._store.set_timeout(timedelta(seconds=timeout_seconds))
        return dist.PrefixStore(_WORLD, self._store)
