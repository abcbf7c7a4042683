"""Which examples share a sample: best fit, longest first, so that few places of a sample stay empty."""

from __future__ import annotations

import bisect

import numpy as np

PACKING_FORMAT = 1
"""Of what `pack` gives for equal lengths."""


def pack(lengths: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Examples by pack, and where each pack begins among them: int64 [examples], int64 [packs + 1].

    Lengths are between 1 and `capacity`. Every example is in one pack; the packs come in the order of their first
    example in the file, and so do the examples within one. Best-fit decreasing: Johnson et al., "Worst-case performance
    bounds for simple one-dimensional packing algorithms" (SIAM J. Computing 3, 1974).
    """
    pack_of = _best_fit(lengths, capacity)
    by_pack = np.argsort(pack_of, kind="stable")
    begins = np.flatnonzero(np.diff(pack_of[by_pack], prepend=-1))  # stable: a pack's first example in the file
    place = np.empty(len(begins), dtype=np.int64)
    place[np.argsort(by_pack[begins])] = np.arange(len(begins))
    place_of = place[pack_of]
    examples = np.argsort(place_of, kind="stable")
    return examples, np.append(np.flatnonzero(np.diff(place_of[examples], prepend=-1)), len(examples))


def _best_fit(lengths: np.ndarray, capacity: int) -> np.ndarray:
    """int64 [examples]: the pack of each, numbered as they are begun.

    Examples of one length are placed together, and so are packs that have equally many free places: a pack takes as
    many examples as fit before another is looked at, since with less room left it fits better than before. So the work
    grows with the number of different lengths, not with that of examples.
    """
    pack_of = np.empty(len(lengths), dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    distinct, counts = np.unique(-lengths[order], return_counts=True)
    open_packs: dict[int, np.ndarray] = {}  # free places -> packs that have so many
    rooms: list[int] = []  # the keys of `open_packs`, ascending
    num_packs = done = 0

    def leave(room: int, packs: np.ndarray) -> None:
        if room and len(packs):
            if room not in open_packs:
                bisect.insort(rooms, room)
                open_packs[room] = np.empty(0, dtype=np.int64)
            open_packs[room] = np.concatenate([open_packs[room], packs])

    for length, count in zip((-distinct).tolist(), counts.tolist()):
        end = done + count
        while done < end:
            at = bisect.bisect_left(rooms, length)
            if at < len(rooms):
                room = rooms.pop(at)
                packs = open_packs.pop(room)
            else:
                room = capacity
                packs = np.arange(num_packs, num_packs - (done - end) // (room // length))
                num_packs += len(packs)
            each = room // length
            taken = min(end - done, each * len(packs))
            pack_of[order[done : done + taken]] = np.repeat(packs, each)[:taken]
            full, rest = divmod(taken, each)
            leave(room - each * length, packs[:full])
            leave(room - rest * length, packs[full : full + 1] if rest else packs[:0])
            leave(room, packs[full + (rest > 0) :])
            done += taken
    return pack_of
