"""ZeRO's stage 0: every data-parallel rank holds the whole optimizer state and steps every weight."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from gooseslo.parallel.collectives import Group
from gooseslo.parallel.data.buffer import GradientBuffer
from gooseslo.parallel.data.masters import Masters
from gooseslo.parallel.data.strategy import Part
from gooseslo.parallel.shared import SharedGradients


class Replicated:
    """Gradients are summed over all data-parallel ranks, each of which then does the same update."""

    shard_group: Group = None

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        *,
        dtype: torch.dtype,
        group: Group,
        shared: Sequence[SharedGradients] = (),
    ):
        """`dtype`: of the weights, which come as they are to be stepped; `shared` gradients are summed first."""
        self.masters = Masters(parameters, dtype)
        self.buffer = GradientBuffer(list(parameters.values()), group)
        self.masters.take_gradients(self.buffer)
        self.shared = shared
        self.stepped = _whole(self.masters.parameters)
        self.weights = _whole(parameters)
        self.are_masters = self.masters.are_copies
        self.flats = self.buffer.flats

    def zero(self) -> None:
        self.buffer.zero()

    def reduce(self) -> None:
        for shared in self.shared:
            shared.sum_()
        self.buffer.reduce()

    def write_back(self) -> None:
        self.masters.write_back()


def _whole(parameters: dict[str, nn.Parameter]) -> list[Part]:
    return [Part(name=name, parameter=p, num_dims=p.dim()) for name, p in parameters.items()]
