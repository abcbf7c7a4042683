"""ZeRO's stage 0: every data-parallel rank holds the whole optimizer state and steps every weight."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from gooseslo.parallel.collectives import Group
from gooseslo.parallel.data.buffer import GradientBuffer
from gooseslo.parallel.data.flat import Sharding
from gooseslo.parallel.data.masters import Masters
from gooseslo.parallel.data.strategy import Part
from gooseslo.parallel.shared import SharedGradients


class Replicated:
    """Gradients are summed over all data-parallel ranks, each of which then does the same update."""

    shard_group: Group = None

    def __init__(
        self,
        segments: Sequence[dict[str, nn.Parameter]],
        *,
        dtype: torch.dtype,
        group: Group,
        shared: Sequence[SharedGradients] = (),
    ):
        """`segments` of the rank's parameters by name are reduced one by one; they come as they are to be stepped.

        `dtype`: what the weights are to have; `shared` gradients are summed first.
        """
        parameters = {name: p for segment in segments for name, p in segment.items()}
        self.masters = Masters(parameters, dtype)
        self.buffer = GradientBuffer([list(segment.values()) for segment in segments], Sharding(replica_group=group))
        self.masters.take_gradients(self.buffer)
        self.shared = shared
        self.stepped = _whole(self.masters.parameters)
        self.weights = _whole(parameters)
        self.are_masters = self.masters.are_copies
        self.flats = self.buffer.flats

    def zero(self) -> None:
        self.buffer.zero()

    def begin_reduce(self, segment: int) -> None:
        self.buffer.begin_reduce(segment)

    def reduce(self) -> None:
        for shared in self.shared:
            shared.sum_()
        self.buffer.reduce()

    def write_back(self) -> None:
        self.masters.write_back()


def _whole(parameters: dict[str, nn.Parameter]) -> list[Part]:
    return [Part(name=name, parameter=p, num_dims=p.dim()) for name, p in parameters.items()]
