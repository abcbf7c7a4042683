"""Who is told of each record of a run, on rank 0: the metrics file, the user's terminal, the trackers.

The metrics file is the run's own account, so its failure ends the run. Everyone else is only a guest: warned of once,
then dropped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable

from gooseslo.engine.display.reporter import Reporter
from gooseslo.engine.loop import Observer
from gooseslo.engine.metrics import MetricsWriter, warning_record
from gooseslo.engine.run_folder import METRICS
from gooseslo.engine.start import last_step
from gooseslo.engine.trackers.tensorboard import TensorBoard
from gooseslo.engine.trackers.wandb_run import WandbRun
from gooseslo.engine.worker import Worker
from gooseslo.schema.groups import TrainJob


def build_observers(worker: Worker, job: TrainJob, *, first_step: int) -> list[Observer]:
    """The observers of this rank: none but on rank 0. They are closed in reverse, so warnings still find a display."""
    if worker.rank != 0:
        return []
    run_dir, logging = worker.run_dir, job.logging
    metrics = MetricsWriter(run_dir / METRICS)
    steps = last_step(job)
    display = Guarded(
        "the display", lambda: Reporter(worker.console, num_steps=steps, progress=logging.progress), warn=_log
    )

    def tell(text: str) -> None:
        _log(text)
        display(warning_record(text))

    observers: list[Observer] = [metrics, display]
    if logging.tensorboard:
        observers.append(Guarded("TensorBoard", lambda: TensorBoard(run_dir, first_step=first_step), warn=tell))
    if logging.wandb.mode != "off":
        observers.append(Guarded("wandb", lambda: _wandb_run(worker, job, tell), warn=tell))
    return observers


def _wandb_run(worker: Worker, job: TrainJob, tell: Callable[[str], None]) -> WandbRun:
    wandb = job.logging.wandb
    return WandbRun(
        worker.run_dir,
        mode=wandb.mode,
        project=wandb.project,
        config=dataclasses.asdict(job),
        tell=tell,
        seconds_left=worker.seconds_left,
    )


class Guarded:
    """An observer whose failure does not end the training: `warn` is told of it once, then it is dropped."""

    def __init__(self, name: str, make: Callable[[], Observer], *, warn: Callable[[str], None]):
        """`make` gives the observer; where that fails there is none."""
        self._name, self._warn = name, warn
        self._observer: Observer | None = None
        try:
            self._observer = make()
        except Exception as error:
            self._say_why(error)

    def __call__(self, record: dict[str, object]) -> None:
        if self._observer is None:
            return
        try:
            self._observer(record)
        except Exception as error:
            failed, self._observer = self._observer, None
            with contextlib.suppress(Exception):
                failed.close()
            self._say_why(error)

    def close(self) -> None:
        if self._observer is None:
            return
        closing, self._observer = self._observer, None
        try:
            closing.close()
        except Exception as error:
            self._say_why(error)

    def _say_why(self, error: Exception) -> None:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        self._warn(f"{self._name} failed and is left out from here on ({reason}); metrics.jsonl has every number")


def _log(text: str) -> None:
    """Into the rank's log, where standard error of a worker goes."""
    sys.stderr.write(f"warning: {text}\n")
