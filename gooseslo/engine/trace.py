"""`logging.trace`: what each rank computed when, for chrome://tracing and https://ui.perfetto.dev.

The file is a list of events in the Trace Event Format, one a line; viewers take it without its closing bracket, so that
a run that was killed leaves a trace.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch

from gooseslo.parallel.mesh import Coordinates
from gooseslo.parallel.pipeline.callbacks import PipelineCallback

FOLDER = "trace"
_Mark = tuple[float, "torch.cuda.Event | None"]


class ChromeTrace(PipelineCallback):
    """A row for each stage; times are of the machine's clock, those of a device placed by the first event of a step."""

    def __init__(self, run_dir: Path, *, rank: int, at: Coordinates, device: torch.device):
        self._on_cuda = device.type == "cuda"
        self._rank = rank
        self._open: list[tuple[str, int, int, _Mark]] = []
        self._done: list[tuple[str, int, int, _Mark, _Mark]] = []
        folder = run_dir / FOLDER
        folder.mkdir(exist_ok=True)
        self._file = (folder / f"rank-{rank}.json").open("a", encoding="utf-8")
        if self._file.tell() == 0:  # else the run goes on, and so does its trace
            self._file.write("[\n")
        self._write({"name": "process_name", "ph": "M", "args": {"name": f"rank {rank} ({at})"}})

    def before(self, kind: str, micro_batch: int, stage: int) -> None:
        self._open.append((kind, micro_batch, stage, self._now()))

    def after(self, kind: str, micro_batch: int, stage: int) -> None:
        self._done.append((*self._open.pop(), self._now()))

    def after_step(self, step: int) -> None:
        """Write what has been computed; on CUDA this waits for it."""
        if self._done and self._on_cuda:
            torch.cuda.synchronize()
        origin = self._done[0][3] if self._done else None
        for kind, micro_batch, stage, begin, end in self._done:
            start = self._microseconds(begin, origin)
            event = {"name": f"{kind} {micro_batch}", "cat": kind, "ph": "X", "tid": stage, "ts": start}
            event["dur"] = self._microseconds(end, origin) - start
            self._write({**event, "args": {"step": step, "micro_batch": micro_batch, "stage": stage}})
        self._done.clear()
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _now(self) -> _Mark:
        event = None
        if self._on_cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        return time.time(), event

    def _microseconds(self, mark: _Mark, origin: _Mark | None) -> float:
        seconds, event = mark
        if event is not None and origin is not None and origin[1] is not None:
            seconds = origin[0] + origin[1].elapsed_time(event) / 1000
        return seconds * 1e6

    def _write(self, event: dict[str, Any]) -> None:
        self._file.write(json.dumps({"pid": self._rank, **event}) + ",\n")
