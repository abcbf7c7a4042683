"""Parameters of which several ranks hold a copy and each sees a part of the gradient: the parts are summed.

Three kinds: a weight tied over the two ends of a pipeline; under sequence parallelism the norms and biases that each
tp rank applied to its own shard; and a key-value head that several tp ranks hold for their own query heads. Equal
gradients then keep the copies equal, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gooseslo.parallel.collectives import Group, all_reduce_


@dataclass(frozen=True, kw_only=True)
class SharedGradients:
    """The local copies, by name, and the group of ranks that hold the others."""

    parameters: dict[str, nn.Parameter]
    group: Group

    @torch.no_grad()
    def sum_(self) -> None:
        """Sum each copy's gradient over the group; before any data-parallel shard is taken. Collective over it.

        One message for each dtype: most are as small as a norm.
        """
        if self.group is None:
            return
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for name in sorted(self.parameters):
            gradient = self.parameters[name].grad
            assert gradient is not None, f"{name} is shared and has no gradient"
            kinds.setdefault(gradient.dtype, []).append(gradient)
        for gradients in kinds.values():
            if len(gradients) == 1:
                all_reduce_(gradients[0], self.group)
                continue
            flat = all_reduce_(torch.cat([gradient.reshape(-1) for gradient in gradients]), self.group)
            parts = flat.split([gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))
