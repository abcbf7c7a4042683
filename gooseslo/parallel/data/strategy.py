"""What the data-parallel ranks of a model share around a step: gradients, and who updates which weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from gooseslo.parallel.collectives import Group


@dataclass(frozen=True, kw_only=True)
class Part:
    """What this rank holds or updates of one of its weights: the whole of it, or a range of its elements."""

    name: str
    """Of the weight."""
    parameter: nn.Parameter
    """Of the weight's shape, or flat for a range."""
    num_dims: int
    """Of the weight: norms and biases have one."""
    start: int | None = None
    """First element of the range in the weight, row by row; None: the whole weight."""


class DataParallel(Protocol):
    """One way to keep the data-parallel copies of a model equal; ZeRO's stages are such ways.

    Every method is collective over the data-parallel group and the groups of shared gradients.
    """

    stepped: list[Part]
    """What the optimizer of this rank updates; their `.grad` is whole after `reduce`."""
    are_masters: bool
    """Whether these are copies of finer dtype than the weights."""
    flats: list[Tensor]
    """The gradients of `stepped`, in as few tensors as there are: what clipping scales."""
    shard_group: Group
    """The ranks that step a copy of the model together; None: each steps its own."""

    @property
    def weights(self) -> list[Part]:
        """What this rank holds of the model itself between steps, in the model's dtype."""

    def zero(self) -> None:
        """Forget the last step's gradients; replaces `optimizer.zero_grad()`."""

    def begin_reduce(self, segment: int) -> None:
        """Nothing more will be added to the gradients of a segment in this step: its sum may begin."""

    def reduce(self) -> None:
        """Sum gradients over all ranks that saw a part of them; the loss is already divided by the step's tokens."""

    def write_back(self) -> None:
        """Give all weights the values of what was stepped; after every update, and after loading.

        Those of other ranks may travel for a while: `weights` has them whole, and `wait_for_weights` waits for some.
        """

    def wait_for_weights(self, segment: int | None = None) -> None:
        """Those of a segment, or all, are about to be used."""
