"""The numbers of a record in words, as both displays and the summary say them."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

Record = Mapping[str, Any]

_STEPS_FOR_SPEED = 20
_UNITS = ("B", "kB", "MB", "GB", "TB")


def train_parts(record: Record) -> list[str]:
    """What there is to say of a train record beside its loss, the most important first."""
    parts = [
        f"lr {record['lr']:.2e}",
        f"grad norm {number(record['grad_norm'], '.3f')}",
        f"{record['tokens_per_second']:,.0f} tokens/s",
    ]
    if record["mfu"] is not None:
        parts.append(f"mfu {record['mfu']:.1%}")
    parts += [
        f"step {short_time(record['step_seconds'])}",
        f"data wait {short_time(record['data_wait_seconds'])}",
        f"memory {memory(record['memory_bytes'])}",
    ]
    if len(record["stage_seconds"]) == 1:
        parts.append(f"compute {short_time(record['stage_seconds'][0])}")
    return parts


def loss_of(record: Record) -> str:
    return f"loss {number(record['loss'], '.4f')}"


def skipped(record: Record) -> str:
    if record.get("overflow"):
        why = f"the gradient is too large for fp16; the loss scale is {record['loss_scale']:g} from now on"
    else:
        loss = record["loss"]
        what = "gradient" if loss is not None and math.isfinite(loss) else "loss"
        why = f"the {what} is not finite"
    return f"step {record['step']}: skipped: {why}"


def evaluation(record: Record) -> str:
    """An eval record."""
    if "accuracy" in record:
        quality = f"accuracy {record['accuracy']:.2%}"
    else:
        quality = f"perplexity {number(record['perplexity'], ',.2f')}"
    return f"step {record['step']}: {record['split']} {loss_of(record)}, {quality}"


def save(record: Record) -> str:
    """A save record."""
    return f"step {record['step']}: saved {record['path']}"


def number(value: float | None, form: str) -> str:
    """A number that may be what JSON has no word for."""
    return "not finite" if value is None or not math.isfinite(value) else format(value, form)


def short_time(seconds: float) -> str:
    """A part of a step, to three digits: `312 ms`, `0.4 ms`, `2.31 s`."""
    if seconds >= 1:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    milliseconds = seconds * 1000
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"


def duration(seconds: float) -> str:
    """Time that a person waits: `12s`, `3m05s`, `2h07m`, `3d04h`."""
    minutes, whole_seconds = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{whole_seconds:02}s" if minutes else f"{whole_seconds}s"


def memory(num_bytes: float) -> str:
    """In decimal units, to three digits."""
    unit = 0
    while num_bytes >= 1000 and unit < len(_UNITS) - 1:
        num_bytes, unit = num_bytes / 1000, unit + 1
    return f"{num_bytes:.3g} {_UNITS[unit]}" if num_bytes < 999.5 else f"{num_bytes:.0f} {_UNITS[unit]}"


class Speed:
    """How long the rest will take, from the middle of the last steps: the first, slow ones are soon forgotten."""

    def __init__(self, num_steps: int):
        self._num_steps, self._step = num_steps, 0
        self._seconds: deque[float] = deque(maxlen=_STEPS_FOR_SPEED)

    def add(self, record: Record) -> None:
        self._step = record["step"]
        self._seconds.append(record["step_seconds"])

    def time_left(self) -> str:
        """Such as `3m05s left`; empty where nothing is left, or before the first step."""
        remaining = self._num_steps - self._step
        if remaining <= 0 or not self._seconds:
            return ""
        return f"{duration(remaining * statistics.median(self._seconds))} left"
