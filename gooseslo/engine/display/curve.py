"""The loss of a whole run in a few characters."""

from __future__ import annotations

import itertools
import math

_LEVELS = "▁▂▃▄▅▆▇█"
_MAX_POINTS = 512


class LossCurve:
    """Means over equal numbers of steps; where there are too many, two become one, so its size is bounded."""

    def __init__(self) -> None:
        self._points: list[float] = []
        self._steps_per_point = 1
        self._pending: list[float] = []

    def add(self, loss: float) -> None:
        """Take the next step's loss; what is not finite has no place on the curve."""
        if not math.isfinite(loss):
            return
        self._pending.append(loss)
        if len(self._pending) < self._steps_per_point:
            return
        self._points.append(sum(self._pending) / len(self._pending))
        self._pending.clear()
        if len(self._points) == _MAX_POINTS:
            self._points = [(first + second) / 2 for first, second in zip(self._points[::2], self._points[1::2])]
            self._steps_per_point *= 2

    def points(self, most: int) -> list[float]:
        """The curve in at most that many points: means of neighbours."""
        if len(self._points) <= most:
            return list(self._points)
        edges = [round(index * len(self._points) / most) for index in range(most + 1)]
        return [sum(self._points[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def sparkline(values: list[float]) -> str:
    """One character a value, from the smallest to the largest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[round((value - low) / (high - low) * top) if high > low else 0] for value in values)
