"""Learning rates as plain functions of the updates done so far; skipped steps are no updates and move none of them.

Warm-up is linear from 0 and reaches the peak after `warmup` updates. `horizon` is the run's number of steps: after so
many updates a falling rate has reached `min_ratio` of the peak, and it stays there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gooseslo.schema.groups import (
    ConstantScheduleConfig,
    CosineScheduleConfig,
    LinearScheduleConfig,
    LRScheduleConfig,
    WSDScheduleConfig,
)


def constant(updates: int, *, peak: float, warmup: int) -> float:
    """Warm-up, then the peak for ever."""
    return peak * updates / warmup if updates < warmup else peak


def linear(updates: int, *, peak: float, warmup: int, horizon: int, min_ratio: float) -> float:
    """Warm-up, then a straight line down."""
    if updates < warmup:
        return constant(updates, peak=peak, warmup=warmup)
    return _line(peak, min_ratio * peak, _progress(updates, warmup, horizon))


def cosine(updates: int, *, peak: float, warmup: int, horizon: int, min_ratio: float) -> float:
    """Warm-up, then half a cosine down (Loshchilov and Hutter, "SGDR", arXiv:1608.03983, without restarts)."""
    if updates < warmup:
        return constant(updates, peak=peak, warmup=warmup)
    low = min_ratio * peak
    return low + (peak - low) * 0.5 * (1.0 + math.cos(math.pi * _progress(updates, warmup, horizon)))


def wsd(updates: int, *, peak: float, warmup: int, horizon: int, min_ratio: float, decay: int | None = None) -> float:
    """Warm-up, stable, decay: the peak until the last `decay` updates, which go down in a straight line.

    None: a tenth of the horizon. Source: Hu et al., "MiniCPM" (arXiv:2404.06395), section 4.
    """
    decay_start = max(warmup, horizon - (math.ceil(horizon / 10) if decay is None else decay))
    if updates < decay_start:
        return constant(updates, peak=peak, warmup=warmup)
    return _line(peak, min_ratio * peak, _progress(updates, decay_start, horizon))


def build_lr_schedule(config: LRScheduleConfig, *, peak: float, horizon: int) -> Callable[[int], float]:
    """Updates done so far -> learning rate of the next."""
    warmup = config.warmup_steps
    match config:
        case ConstantScheduleConfig():
            return lambda updates: constant(updates, peak=peak, warmup=warmup)
        case LinearScheduleConfig(min_ratio=low):
            return lambda updates: linear(updates, peak=peak, warmup=warmup, horizon=horizon, min_ratio=low)
        case CosineScheduleConfig(min_ratio=low):
            return lambda updates: cosine(updates, peak=peak, warmup=warmup, horizon=horizon, min_ratio=low)
        case WSDScheduleConfig(min_ratio=low, decay_steps=decay):
            return lambda updates: wsd(updates, peak=peak, warmup=warmup, horizon=horizon, min_ratio=low, decay=decay)
    raise AssertionError(f"no schedule for {config}")


def _line(start: float, stop: float, progress: float) -> float:
    """A straight line, exact at both of its ends."""
    return start * (1.0 - progress) + stop * progress


def _progress(updates: int, start: int, stop: int) -> float:
    """How much of [start, stop] is done, from 0 to 1."""
    return min(1.0, (updates - start) / max(1, stop - start))
