"""Which transformer blocks each pipeline stage holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from gooseslo.errors import TopologyError


def partition_uniform(num_layers: int, pp: int) -> list[int]:
    """Layers per stage, as equal as can be; the middle stages take the rest, since the ends hold embeddings."""
    _check(num_layers, pp)
    base, rest = divmod(num_layers, pp)
    middle_first = sorted(range(pp), key=lambda stage: abs(stage - (pp - 1) / 2))
    extra = set(middle_first[:rest])
    return [base + (stage in extra) for stage in range(pp)]


def partition_by_weight(weights: Sequence[float], pp: int, *, first: float = 0.0, last: float = 0.0) -> list[int]:
    """Layers per stage so that the heaviest stage is as light as can be.

    `weights` is one cost per block; `first` and `last` are what the first stage (embeddings) and the last stage (final
    norm and head) hold besides. Every stage gets a block. Of equal answers the one nearest to equal counts is taken.
    """
    num_layers = len(weights)
    _check(num_layers, pp)
    sums = [0.0]
    for weight in weights:
        sums.append(sums[-1] + weight)

    def cost(stage: int, start: int, stop: int) -> float:
        return sums[stop] - sums[start] + (first if stage == 0 else 0) + (last if stage == pp - 1 else 0)

    @cache
    def best(stage: int, start: int) -> tuple[float, int, tuple[int, ...]]:
        """(heaviest stage, sum of squared counts, counts) of the stages from `stage` on, from block `start` on."""
        left = num_layers - start
        if stage == pp - 1:
            return cost(stage, start, num_layers), left * left, (left,)
        choices = []
        for count in range(1, left - (pp - stage - 1) + 1):
            heaviest, squares, counts = best(stage + 1, start + count)
            own = cost(stage, start, start + count)
            choices.append((max(own, heaviest), squares + count * count, (count, *counts)))
        return min(choices)

    return list(best(0, 0)[2])


def partition_by_rank(
    start: Sequence[int], cost: Callable[[Sequence[int]], Sequence[float]], *, limit: int = 10_000
) -> list[int]:
    """Layers per stage so that the costliest rank costs as little as can be, found from `start` on.

    `cost` gives each rank's cost of layers per stage; ranks may have several stages. One layer after another goes to
    the stage where it helps most: the costliest rank first, then the next. At most `limit` layers move.
    """
    counts = list(start)
    best = sorted(cost(counts), reverse=True)
    for _ in range(limit):
        found = None
        for giver in range(len(counts)):
            for taker in range(len(counts)):
                if giver == taker or counts[giver] == 1:
                    continue
                moved = list(counts)
                moved[giver] -= 1
                moved[taker] += 1
                costs = sorted(cost(moved), reverse=True)
                if costs < best:
                    best, found = costs, moved
        if found is None:
            break
        counts = found
    return counts


def layer_ranges(counts: Sequence[int]) -> list[range]:
    """Layers per stage as ranges of layer indices."""
    ranges, start = [], 0
    for count in counts:
        ranges.append(range(start, start + count))
        start += count
    return ranges


def _check(num_layers: int, pp: int) -> None:
    if pp > num_layers:
        raise TopologyError(f"parallel.pp={pp}: larger than the {num_layers} layers of the model")
