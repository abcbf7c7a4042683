"""The records as a run of Weights & Biases, which must never hold up the training.

All of wandb lives in a thread of its own, its import and the talk with its server included. The training only puts
records into a queue. What the thread has to say comes out at the next record, in the training's thread.
"""

from __future__ import annotations

import gc
import math
import queue
import secrets
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gooseslo.engine.trackers.scalars import scalars
from gooseslo.staging import write_text

FOLDER = "wandb"
RUN_ID = "run-id"
CONNECT_SECONDS = 15.0
"""So long the server is waited for when the run begins."""
FINISH_SECONDS = 20.0
"""So long the rest of the records is sent when the run ends."""
FAILED_SECONDS = 2.0
"""So long after a failure: enough for files; the other ranks' end may not wait for a server."""
_GRACE_SECONDS = 10.0
_MARGIN_SECONDS = 2.0
_MAX_WAITING = 10_000


class WandbRun:
    """Records go to wandb, online or into files of the run folder; one run, whatever number of starts it takes."""

    def __init__(
        self,
        run_dir: Path,
        *,
        mode: str,
        project: str,
        config: Mapping[str, object],
        tell: Callable[[str], None],
        seconds_left: Callable[[], float] = lambda: math.inf,
    ):
        """`mode` is offline or online, `config` the resolved configuration; `tell` takes a line for the user.

        `seconds_left`: so long the process may still live.
        """
        self._run_dir, self._tell, self._seconds_left = run_dir, tell, seconds_left
        self._settings = {"project": project, "name": run_dir.name, "config": dict(config), "id": _run_id(run_dir)}
        self._records: queue.Queue[dict[str, float] | None] = queue.Queue(_MAX_WAITING)
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._failed = False
        """The training ends with an error."""
        self._thread = threading.Thread(target=self._live, args=(mode,), name="wandb", daemon=True)
        self._thread.start()

    def __call__(self, record: dict[str, object]) -> None:
        """Queue a record. Raises what wandb has raised since, and TimeoutError where it takes no more records."""
        self._hear()
        numbers = scalars(record)
        if numbers:
            step = record["step"]
            assert isinstance(step, int)
            try:
                self._records.put_nowait({"step": step, **numbers})
            except queue.Full:
                raise TimeoutError(f"{_MAX_WAITING} records wait to be taken") from None

    def close(self) -> None:
        """End the run; waits a bounded time for what is still to be sent. Raises what wandb has raised."""
        self._failed = sys.exc_info()[0] is not None
        try:
            self._records.put_nowait(None)
        except queue.Full:
            return  # it has stood still for thousands of records, and was given up
        seconds = FAILED_SECONDS if self._failed else CONNECT_SECONDS + FINISH_SECONDS + _GRACE_SECONDS
        self._thread.join(max(0.0, min(seconds, self._seconds_left() - _MARGIN_SECONDS)))
        self._hear()
        if self._thread.is_alive():
            raise TimeoutError("it does not end")

    def _hear(self) -> None:
        """What the thread left: notes to the user, or the error that ended it."""
        while not self._notes.empty():
            self._tell(self._notes.get())
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _live(self, mode: str) -> None:
        """The thread: start, hand over records until the None that ends them, finish."""
        try:
            import wandb

            try:
                run = self._start(wandb, mode)
                run.define_metric("*", step_metric="step")  # wandb's own counter refuses steps that are done again
                while (record := self._records.get()) is not None:
                    run.log(record)
                run.finish(exit_code=int(self._failed))
            finally:
                # a worker ends without the exit handlers that wandb relies on
                wandb.teardown()
                _remove_temporary_folders()
        except BaseException as error:
            self._error = error

    def _start(self, wandb: Any, mode: str) -> Any:
        """The run online, or in files where that fails or was asked for."""
        if mode == "online":
            try:
                return self._init(wandb, "online")
            except Exception as error:
                wandb.teardown()  # else what failed would stand in the way of the second start
                reason = " ".join(str(error).split())[:200]
                self._notes.put(
                    f"wandb is not reached ({reason}); the run is recorded offline, and "
                    f"`wandb sync {self._run_dir / FOLDER}/offline-run-*` sends it later"
                )
        return self._init(wandb, "offline")

    def _init(self, wandb: Any, mode: str) -> Any:
        settings = wandb.Settings(
            init_timeout=CONNECT_SECONDS,
            login_timeout=CONNECT_SECONDS,
            finish_timeout=FINISH_SECONDS,
            finish_timeout_raises=True,
            console="off",  # the rank's log is ours
            quiet=True,
            allow_val_change=True,  # a continued run may have another layout
            disable_git=True,
            save_code=False,
        )
        resume = "allow" if mode == "online" else None
        return wandb.init(dir=str(self._run_dir), mode=mode, resume=resume, settings=settings, **self._settings)


def _run_id(run_dir: Path) -> str:
    """The run's name at wandb: made once, kept in the run folder over all starts."""
    path = run_dir / FOLDER / RUN_ID
    if path.is_file():
        return path.read_text(encoding="utf-8").strip()
    path.parent.mkdir(exist_ok=True)
    run_id = secrets.token_hex(4)
    write_text(path, f"{run_id}\n")
    return run_id


def _remove_temporary_folders() -> None:
    """Those that wandb's modules make when they are imported, for media and artifacts that we do not have."""
    for found in gc.get_objects():
        if type(found) is tempfile.TemporaryDirectory and found.name.endswith(("wandb-media", "wandb-artifacts")):
            found.cleanup()
