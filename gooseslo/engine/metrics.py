"""What a step did, as the lines of `metrics.jsonl`: speed, operations, utilisation, memory."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from transformers import PretrainedConfig

from gooseslo.engine.plan import Plan
from gooseslo.policies.registry import CAUSAL_LM

PEAK_FLOPS = {
    # part of the device's name (the longest counts) -> precision -> dense operations per second, by the data sheet
    "H200": {"fp64": 67e12, "fp32": 67e12, "bf16": 989e12, "fp16": 989e12},
    "H100": {"fp64": 67e12, "fp32": 67e12, "bf16": 989e12, "fp16": 989e12},
    "H100 PCIe": {"fp64": 51e12, "fp32": 51e12, "bf16": 756e12, "fp16": 756e12},
    "A100": {"fp64": 19.5e12, "fp32": 19.5e12, "bf16": 312e12, "fp16": 312e12},
    "V100": {"fp64": 7.8e12, "fp32": 15.7e12, "fp16": 125e12},
}
_KINDS = ("train", "eval")


@dataclass(frozen=True, kw_only=True)
class TrainRecord:
    """What the loop knows of one optimizer step; numbers over all ranks."""

    step: int
    loss: float
    lr: float
    grad_norm: float
    tokens: int
    consumed_samples: int
    consumed_tokens: int
    step_seconds: float
    data_wait_seconds: float
    memory_bytes: int
    """The largest rank's peak."""
    skipped: bool
    overflow: bool = False
    """It was skipped for a gradient that fp16 cannot hold under the loss scale."""
    loss_scale: float | None = None
    """That of the next step; None but for fp16."""
    stage_seconds: tuple[float, ...]
    """Forward and backward computation of each pipeline stage, without waiting; the slowest rank of the stage."""


def describer(plan: Plan, *, sequence_length: int) -> Callable[[TrainRecord], dict[str, object]]:
    """A function that completes a record with what follows from the model and the devices."""
    config = plan.config
    flops = flops_per_token(
        num_parameters=plan.num_parameters - num_lookup_parameters(config, plan.head),
        num_layers=config.num_hidden_layers,
        width=config.hidden_size,
        sequence_length=sequence_length,
    )
    name = torch.cuda.get_device_name() if plan.device == "cuda" else ""
    peak = peak_flops(name, plan.precision)
    num_devices = plan.topology.world_size
    return lambda record: train_record(record, flops_per_token=flops, peak=peak, num_devices=num_devices)


def train_record(
    record: TrainRecord, *, flops_per_token: float, peak: float | None, num_devices: int
) -> dict[str, object]:
    """A train line; `peak` is one device's operations per second, None where unknown.

    Utilisation counts the whole step's tokens against all devices' peak, and the operations that the model needs,
    whatever was computed again.
    """
    tokens_per_second = record.tokens / record.step_seconds
    flops_per_second = tokens_per_second * flops_per_token
    fields = dataclasses.asdict(record)
    return {
        "kind": "train",
        **{key: fields[key] for key in ("step", "loss", "lr", "grad_norm", "tokens")},
        **{key: fields[key] for key in ("consumed_samples", "consumed_tokens", "step_seconds", "data_wait_seconds")},
        "tokens_per_second": tokens_per_second,
        "flops_per_second": flops_per_second,
        "mfu": None if peak is None else flops_per_second / (peak * num_devices),
        "memory_bytes": record.memory_bytes,
        "skipped": record.skipped,
        **({} if record.loss_scale is None else {"overflow": record.overflow, "loss_scale": record.loss_scale}),
        "stage_seconds": list(record.stage_seconds),
    }


def eval_record(
    *, step: int, split: str, loss: float, samples: int, accuracy: float | None = None
) -> dict[str, object]:
    """An evaluation line: of a classifier with its accuracy, from 0 to 1; of a language model with its perplexity."""
    if accuracy is None:
        quality = {"perplexity": math.exp(loss) if loss < 700 else math.inf}
    else:
        quality = {"accuracy": accuracy}
    return {"kind": "eval", "step": step, "split": split, "loss": loss, **quality, "samples": samples}


def save_record(*, step: int, path: Path) -> dict[str, object]:
    """That a step folder was written: for the display, no line of `metrics.jsonl`."""
    return {"kind": "save", "step": step, "path": str(path)}


def warning_record(text: str) -> dict[str, object]:
    """What the user should know and the run survives: for display and log, no line of `metrics.jsonl`."""
    return {"kind": "warning", "text": text}


def flops_per_token(*, num_parameters: int, num_layers: int, width: int, sequence_length: int) -> float:
    """Operations to train on one token: 6 N + 12 L D S (Chowdhery et al., PaLM, 2022, appendix B).

    N counts the parameters that take part in matrix products: an embedding that is only looked up does none, a tied
    one does, as the head.
    """
    return 6.0 * num_parameters + 12.0 * num_layers * width * sequence_length


def num_lookup_parameters(config: PretrainedConfig, head: str = CAUSAL_LM) -> int:
    """Parameters of the tables that a model only looks up: learned positions, and token embeddings not tied."""
    positions = 0 if getattr(config, "rope_parameters", None) else int(config.max_position_embeddings)
    tokens = 0 if config.tie_word_embeddings and head == CAUSAL_LM else int(config.vocab_size)
    return (positions + tokens) * int(config.hidden_size)


def peak_flops(device_name: str, precision: str) -> float | None:
    """Dense operations per second of one device, None where the table does not have it."""
    fitting = [name for name in PEAK_FLOPS if name.lower() in device_name.lower()]
    return PEAK_FLOPS[max(fitting, key=len)].get(precision) if fitting else None


def peak_memory_bytes(device: torch.device) -> int:
    """The most this process held so far: of the device on CUDA, resident on CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class MetricsWriter:
    """Appends records to `metrics.jsonl`, each by one write, so that a reader never sees part of a line."""

    def __init__(self, path: Path):
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        _drop_partial_line(self._fd)

    def __call__(self, record: Mapping[str, object]) -> None:
        if record["kind"] in _KINDS:
            line = json.dumps({key: _finite(value) for key, value in record.items()}, allow_nan=False)
            os.write(self._fd, f"{line}\n".encode())

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a `metrics.jsonl`, in order; none where the file is not there."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _finite(value: object) -> object:
    """JSON has no NaN and no infinity: null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _drop_partial_line(fd: int) -> None:
    """Cut off what a run that was killed, or a full disk, left of a last line."""
    size = os.fstat(fd).st_size
    tail = os.pread(fd, 65536, max(0, size - 65536))
    os.ftruncate(fd, size - len(tail.rpartition(b"\n")[2]))
