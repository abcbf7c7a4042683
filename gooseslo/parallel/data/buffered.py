"""What the ways of data parallelism with a gradient buffer have in common: the buffer, and shared gradients first."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from gooseslo.parallel.data.buffer import GradientBuffer
from gooseslo.parallel.data.flat import Sharding
from gooseslo.parallel.shared import SharedGradients


class Buffered:
    """The part of `DataParallel` that is about gradients."""

    def __init__(
        self, segments: Sequence[dict[str, nn.Parameter]], sharding: Sharding, shared: Sequence[SharedGradients]
    ):
        """`segments` of the rank's parameters by name are reduced one by one; `shared` gradients are summed first."""
        self.buffer = GradientBuffer([list(segment.values()) for segment in segments], sharding)
        self.shared = shared

    def zero(self) -> None:
        self.buffer.zero()

    def begin_reduce(self, segment: int) -> None:
        self.buffer.begin_reduce(segment)

    def reduce(self) -> None:
        for shared in self.shared:
            shared.sum_()
        self.buffer.reduce()
