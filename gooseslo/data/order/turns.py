"""Whose turn it is: positions shared out among data sets, such that every prefix holds every set's share to within one.

With share w of the positions, the j-th turn of a set (from 0) has a window: it may come at position n once
j < w (n + 1) and must have come before n = (j + 1) / w. A sequence that keeps all windows has floor(w n) to ceil(w n)
turns of every set after every n. Earliest deadline first keeps them all (such a sequence exists: Tijdeman, The chairman
assignment problem, 1980), but takes one position after the other. So quicker rules, for many positions at once, propose
a chunk; if none keeps all windows and leaves no more turns due afterwards than there are positions, it is worked out by
earliest deadline first.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from gooseslo.errors import DataError

_CHUNK = 1 << 16
"""Positions worked out at a time. Changing it changes which rule decides, and so the order of samples."""

_LIGHTEST = (1 / 4, 0, 1 / 8)
"""The trees that make proposals, in this order: what counts as a light set, as a part of the mean. Like _CHUNK."""
_LARGEST_TOTAL = 1 << 52
"""Of the shares as whole numbers."""


class Turns:
    """Position n -> which set, and which of its own positions: a function of the weights alone, for any n.

    What it keeps is how far each set is at every chunk's beginning, up to the furthest that was asked for.
    """

    def __init__(self, weights: Sequence[float]):
        self.shares = check_weights(weights)
        self.total = sum(self.shares)
        trees = [_grow_tree(self.shares, lightest=lightest) for lightest in _LIGHTEST]
        self._trees = [tree for index, tree in enumerate(trees) if tree not in trees[:index]]
        self._part = np.array([share / self.total for share in self.shares])
        self._counts = [np.zeros(len(self.shares), dtype=np.int64)]
        self._recent: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type, tuple[tuple[int, ...]]]:
        return type(self), (self.shares,)

    def locate(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Sets, int32 [count], and their own positions, int64 [count], of positions start ... start + count - 1."""
        sets, positions = np.empty(count, dtype=np.int32), np.empty(count, dtype=np.int64)
        done = 0
        while done < count:
            chunk, offset = divmod(start + done, _CHUNK)
            taken = min(_CHUNK - offset, count - done)
            with self._lock:
                of_chunk = self._chunk(chunk)
            sets[done : done + taken] = of_chunk[0][offset : offset + taken]
            positions[done : done + taken] = of_chunk[1][offset : offset + taken]
            done += taken
        return sets, positions

    def _chunk(self, chunk: int) -> tuple[np.ndarray, np.ndarray]:
        if chunk in self._recent:
            return self._recent[chunk]
        for index in range(min(len(self._counts) - 1, chunk), chunk + 1):
            counts, first = self._counts[index], index * _CHUNK
            sets, positions = self._work_out(first, counts)
            if len(self._counts) == index + 1:
                self._counts.append(counts + np.bincount(sets, minlength=len(counts)))
        self._recent = {**dict(list(self._recent.items())[-1:]), chunk: (sets, positions)}
        return sets, positions

    def _work_out(self, first: int, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        for nodes in self._trees:
            sets, positions = self._propose(nodes, first, counts)
            if self._keeps_windows(first, sets, positions, counts + np.bincount(sets, minlength=len(counts))):
                return sets, positions
        return self._by_deadline(first, counts)

    def _propose(self, nodes: list[_Node], first: int, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """From the root of a tree down, each node shares its turns out between two sides; leaves are sets.

        A node keeps its sides' windows where its own turns allow it, and they mostly do.
        """
        sets, positions = np.empty(_CHUNK, dtype=np.int32), np.empty(_CHUNK, dtype=np.int64)
        so_far = dict(enumerate(counts.tolist()))
        for node in nodes:
            if node.sides is not None:
                so_far[node.id] = so_far[node.sides[0].id] + so_far[node.sides[1].id]
        turns = {nodes[-1].id: np.arange(_CHUNK)}
        for node in reversed(nodes):
            mine = turns.pop(node.id)
            if node.sides is None:
                sets[mine] = node.id
                positions[mine] = np.arange(so_far[node.id], so_far[node.id] + len(mine))
                continue
            left, right = node.sides
            to_left = self._share_out(node, mine + (first + 1.0), so_far[node.id], so_far[left.id])
            turns[left.id], turns[right.id] = mine[to_left], mine[~to_left]
        return sets, positions

    def _share_out(self, node: _Node, n: np.ndarray, turns: int, of_left: int) -> np.ndarray:
        """bool: which turns of the node are its left side's; `n`: how many positions there are after each.

        Earliest deadline first between two: of i turns the left side wants floor(q (i + 1)), q its part of the node.
        When either has had what it may have by then, the other's turn comes early; who was held back catches up by one
        a turn. Hence the running minimum and maximum. Of two sets in all, the lighter one comes as early as it may:
        what is wrong with a set that is rarely drawn is then seen in the first steps.
        """
        assert node.sides is not None
        left, right = node.sides
        i = np.arange(turns + 1, turns + len(n) + 1, dtype=np.float64)
        are_all = node.share == self.total and left.sides is None and right.sides is None
        wanted = np.floor(left.share * (i if are_all else i + 1) / node.share)
        caps = np.minimum.accumulate(np.ceil(left.share * n / self.total) - i)
        floors = np.maximum.accumulate(i - np.ceil(right.share * n / self.total))
        count = np.minimum(wanted, i + np.minimum(caps, of_left - turns))
        np.maximum(count, np.maximum(floors, of_left), out=count)
        to_left = np.empty(len(n), dtype=bool)
        to_left[:1] = count[:1] > of_left
        np.greater(count[1:], count[:-1], out=to_left[1:])
        return to_left

    def _keeps_windows(self, first: int, sets: np.ndarray, positions: np.ndarray, counts: np.ndarray) -> bool:
        """Whether all turns of a chunk are in their windows, and all could be after it; `counts`: those at its end."""
        n, part = np.arange(first, first + _CHUNK), self._part[sets]
        in_time = (part * n < positions + 1) & (positions < part * (n + 1))
        end = first + _CHUNK
        return bool(in_time.all() and (self._part * end < counts + 1).all()) and self._can_go_on(end, counts)

    def _can_go_on(self, n: int, counts: np.ndarray) -> bool:
        """Whether for every m > n at most m - n turns must have come before m.

        That holds by itself once the sets that are ahead of their share at m are so by less than one turn in all.
        """
        ahead = counts - self._part * n > 0
        even_at = np.append(counts[ahead] / self._part[ahead], n)  # where the share has caught up with the set
        order = np.argsort(-even_at, kind="stable")
        turns, parts = (np.append(values[ahead], 0)[order] for values in (counts, self._part))
        still_ahead = np.cumsum(turns) - turns - (np.cumsum(parts) - parts) * even_at[order]
        horizon = math.ceil(even_at[order][np.flatnonzero(still_ahead < 1)[-1]])
        if horizon - n > 4 * _CHUNK:  # too far to look
            return False
        due = np.maximum(np.floor(self._part * horizon).astype(np.int64) - counts, 0)
        shares = np.repeat(np.array(self.shares, dtype=np.float64), due)
        numbers = np.arange(due.sum()) - np.repeat(np.cumsum(due) - due - counts, due)
        deadlines = np.ceil((numbers + 1) * float(self.total) / shares).astype(np.int64) - n
        return bool((np.cumsum(np.bincount(deadlines)) <= np.arange(deadlines.max(initial=0) + 1)).all())

    def _by_deadline(self, first: int, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One position after the other, the turn that is due first among those that may come; exact for any weights."""
        shares, total, num_sets = self.shares, self.total, len(self.shares)
        number = counts.tolist()
        due: list[int] = []  # deadline * num_sets + set, of each set's next turn if it may come
        coming: defaultdict[int, list[int]] = defaultdict(list)
        for index, share in enumerate(shares):
            if share:
                coming[max(first, number[index] * total // share)].append(index)
        sets, positions = [], []
        for n in range(first, first + _CHUNK):
            for index in coming.pop(n, ()):
                heapq.heappush(due, -(-(number[index] + 1) * total // shares[index]) * num_sets + index)
            index = heapq.heappop(due) % num_sets
            sets.append(index)
            positions.append(number[index])
            number[index] += 1
            coming[max(n + 1, number[index] * total // shares[index])].append(index)
        return np.array(sets, dtype=np.int32), np.array(positions, dtype=np.int64)


class _Node(NamedTuple):
    """A set (its id is its index), or two sides that share their turns."""

    share: int
    id: int
    sides: tuple[_Node, _Node] | None = None


def check_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """The weights as whole numbers of the same proportions, decimals taken as written; DataError for what is none."""
    if not weights:
        raise DataError("weights: none; a blend needs at least one data set")
    for index, weight in enumerate(weights):
        if not math.isfinite(weight) or weight < 0:
            raise DataError(f"weights[{index}]={weight}: must be a number, at least 0")
    if not any(weights):
        raise DataError("weights: all are 0\n  at least one must be above")
    exact = [Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(fraction.denominator for fraction in exact))
    whole = [int(fraction * scale) for fraction in exact]
    if sum(whole) // math.gcd(*whole) > _LARGEST_TOTAL:  # no less exact than the floats that they came as
        whole = [max(round(value * _LARGEST_TOTAL / Fraction(sum(whole))), int(value > 0)) for value in whole]
    return tuple(value // math.gcd(*whole) for value in whole)


def _grow_tree(shares: Sequence[int], *, lightest: float) -> list[_Node]:
    """Nodes over the sets that have a share, children before parents, the root last.

    Heavy sets are near the root (Huffman's tree), so that most turns pass few nodes. Sets below `lightest` times the
    mean have a tree of their own, which joins the others' at the root: beside a light set, a heavier one is nearly all
    of its parent, and has little room left to make good for what the parent's turns are early or late.
    """
    ids = itertools.count(len(shares))
    nodes = [_Node(share, index) for index, share in enumerate(shares) if share > 0]
    rest, roots = list(nodes), []
    while rest:
        mean = sum(node.share for node in rest) / len(rest)
        roots.append(_join([node for node in rest if node.share >= lightest * mean], ids, nodes))
        rest = [node for node in rest if node.share < lightest * mean]
    while len(roots) > 1:
        roots.append(_join([roots.pop(), roots.pop()], ids, nodes))
    return nodes


def _join(parts: Sequence[_Node], ids: Iterator[int], nodes: list[_Node]) -> _Node:
    """One node over all the parts; the new nodes on the way are appended to `nodes`."""
    by_id = {node.id: node for node in parts}
    heap = [(node.share, node.id) for node in parts]
    heapq.heapify(heap)
    while len(heap) > 1:
        right, left = by_id[heapq.heappop(heap)[1]], by_id[heapq.heappop(heap)[1]]
        node = _Node(left.share + right.share, next(ids), (left, right))
        nodes.append(node)
        by_id[node.id] = node
        heapq.heappush(heap, (node.share, node.id))
    return by_id[heap[0][1]]
