"""Weights tied over the two ends of a pipeline: each end has a copy, and their gradients are summed.

Within one stage a tied weight is one Parameter object and needs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from gooseslo.parallel.collectives import Group, all_reduce_


@dataclass(frozen=True, kw_only=True)
class TiedEnds:
    """The local copy of each tied weight, by the name of its owner, and the pair of ranks that hold the copies."""

    parameters: dict[str, nn.Parameter]
    group: Group

    def sum_gradients(self) -> None:
        """Sum each copy's gradient over the pair, so that equal updates keep the copies equal.

        Collective over the two ends; before any data-parallel shard of the gradient is taken.
        """
        for name in sorted(self.parameters):
            gradient = self.parameters[name].grad
            assert gradient is not None, f"{name} is tied over the pipeline and has no gradient"
            all_reduce_(gradient, self.group)
