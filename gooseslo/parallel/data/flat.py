"""How parameters lie in a flat tensor: in buckets that travel at once, each of which divides into equal shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from gooseslo.parallel.collectives import Group

ALIGNMENT = 32
"""Elements: a shard begins where vector loads and messages like it."""


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """Who shares a flat tensor out, and who holds copies of this rank's share."""

    shard_group: Group = None
    """None: nobody shares."""
    replica_group: Group = None
    """The ranks with the same share; None: this one alone."""

    @property
    def num_shards(self) -> int:
        return 1 if self.shard_group is None else self.shard_group.size()

    @property
    def index(self) -> int:
        return 0 if self.shard_group is None else self.shard_group.rank()


class FlatLayout:
    """Parameters one after another; arithmetic only.

    The order is the given one, so that ranks which hold copies of parameters lay them out, and cut them, alike.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, sharding: Sharding, bucket_elements: int):
        self.offsets: dict[nn.Parameter, int] = {}
        end = 0
        for parameter in parameters:
            self.offsets[parameter] = end
            end += parameter.numel()
        unit = sharding.num_shards * ALIGNMENT if sharding.num_shards > 1 else 1
        self.num_elements = -(-end // unit) * unit
        size = max(unit, bucket_elements // unit * unit)
        starts = range(0, self.num_elements, size)
        self.buckets = [(start, min(start + size, self.num_elements)) for start in starts]
        self.own = [_share(start, stop, sharding) for start, stop in self.buckets]
        """This rank's shard of each bucket."""

    def view(self, flat: Tensor, parameter: nn.Parameter) -> Tensor:
        """Of the parameter's shape."""
        start = self.offsets[parameter]
        return flat[start : start + parameter.numel()].view_as(parameter)

    def own_ranges(self, parameter: nn.Parameter) -> Iterator[tuple[int, int, slice]]:
        """What lies in this rank's shards: (first element in the parameter, number of the shard, place in it)."""
        offset = self.offsets[parameter]
        for number, (start, stop) in enumerate(self.own):
            low, high = max(start, offset), min(stop, offset + parameter.numel())
            if low < high:
                yield low - offset, number, slice(low - start, high - start)


def _share(start: int, stop: int, sharding: Sharding) -> tuple[int, int]:
    size = (stop - start) // sharding.num_shards
    return start + sharding.index * size, start + (sharding.index + 1) * size
