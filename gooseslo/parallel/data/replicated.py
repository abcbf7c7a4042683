"""ZeRO's stage 0: every data-parallel rank holds the whole optimizer state and steps every weight."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from gooseslo.parallel.collectives import Group
from gooseslo.parallel.data.buffered import Buffered
from gooseslo.parallel.data.flat import Sharding
from gooseslo.parallel.data.masters import Masters
from gooseslo.parallel.data.strategy import Part
from gooseslo.parallel.shared import SharedGradients


class Replicated(Buffered):
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
        """As `Buffered`; parameters come as they are to be stepped. `dtype`: what the weights are to have."""
        parameters = {name: p for segment in segments for name, p in segment.items()}
        self.masters = Masters(parameters, dtype)
        super().__init__(segments, Sharding(replica_group=group), shared)
        self.masters.take_gradients(self.buffer)
        self.stepped = _whole(self.masters.parameters)
        self.weights = _whole(parameters)
        self.are_masters = self.masters.are_copies
        self.flats = self.buffer.flats

    def write_back(self) -> None:
        self.masters.write_back()

    def wait_for_weights(self, segment: int | None = None) -> None:
        """Nothing travels."""


def _whole(parameters: dict[str, nn.Parameter]) -> list[Part]:
    return [Part(name=name, parameter=p, num_dims=p.dim()) for name, p in parameters.items()]
