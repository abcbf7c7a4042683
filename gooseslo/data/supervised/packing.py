"""Which examples share a sample: best fit, longest first, so that few places of a sample stay empty."""

from __future__ import annotations

import bisect

import numpy as np


def pack(lengths: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Examples by pack, and where each pack begins among them: int64 [examples], int64 [packs + 1].

    Lengths are between 1 and `capacity`. Every example is in one pack; the packs come in the order of their first
    example in the file, and so do the examples within one. Best-fit decreasing: Johnson et al., "Worst-case performance
    bounds for simple one-dimensional packing algorithms" (SIAM J. Computing 3, 1974).
    """
    packs: list[list[int]] = []
    roomy: dict[int, list[int]] = {}  # free places -> packs that have so many
    free: list[int] = []  # the keys of `roomy`, ascending
    for example in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[example])
        at = bisect.bisect_left(free, length)
        if at < len(free):
            room = free[at]
            number = roomy[room].pop()
            if not roomy[room]:
                del roomy[room], free[at]
        else:
            room, number = capacity, len(packs)
            packs.append([])
        packs[number].append(example)
        if left := room - length:
            if left not in roomy:
                bisect.insort(free, left)
            roomy.setdefault(left, []).append(number)
    packs = sorted(sorted(members) for members in packs)
    starts = np.cumsum([0, *(len(members) for members in packs)])
    return np.array([example for members in packs for example in members], dtype=np.int64), starts
