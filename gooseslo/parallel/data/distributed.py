"""ZeRO's stage 1: the data-parallel ranks share out the optimizer: its masters, its moments and its work.

Gradients are reduce-scattered, each rank updates its shards, and the new weights are all-gathered. Weights and
gradients lie in flat tensors of one layout, so that every message is a bucket and needs no copy.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (arXiv:1910.02054),
section 5.1; the flat layout is that of Megatron-LM's distributed optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gooseslo.parallel.collectives import Group
from gooseslo.parallel.data.buffered import Buffered
from gooseslo.parallel.data.exchange import Travelling, begin_all_gather
from gooseslo.parallel.data.flat import Sharding
from gooseslo.parallel.data.strategy import Part
from gooseslo.parallel.shared import SharedGradients


class DistributedOptimizer(Buffered):
    """Each rank steps its shards of all weights, as flat ranges of them."""

    def __init__(
        self,
        segments: Sequence[dict[str, nn.Parameter]],
        *,
        dtype: torch.dtype,
        sharding: Sharding,
        shared: Sequence[SharedGradients] = (),
        offload: bool = False,
    ):
        """As `Replicated`; with `offload` masters, moments and the update are the CPU's."""
        parameters = {parameter: name for segment in segments for name, parameter in segment.items()}
        self.are_masters = any(parameter.dtype != dtype for parameter in parameters)
        self.shard_group: Group = sharding.shard_group
        self.offload = offload
        super().__init__(segments, sharding, shared)
        self._gathering: dict[int, list[Travelling]] = {}
        """Of the flat weights that travel."""
        self._weights = [Part(name=name, parameter=p, num_dims=p.dim()) for p, name in parameters.items()]
        self.stepped: list[Part] = []
        self._shards: list[_Shard] = []
        self._flat_weights = [self._share_out(index, parameters, dtype) for index in range(len(self.buffer.flats))]
        self.flats = [shard.stepped_gradients for shard in self._shards]

    @property
    def weights(self) -> list[Part]:
        self.wait_for_weights()
        return self._weights

    def reduce(self) -> None:
        super().reduce()
        if self.offload:
            torch._foreach_copy_(self.flats, [shard.gradients for shard in self._shards])

    @torch.no_grad()
    def write_back(self) -> None:
        """The weights of other ranks travel until they are needed."""
        if self.are_masters or self.offload:
            torch._foreach_copy_([s.weights for s in self._shards], [s.stepped for s in self._shards])
        if self.shard_group is None:
            return
        for index, (weights, layout) in enumerate(zip(self._flat_weights, self.buffer.layouts)):
            self._gathered(index)
            self._gathering[index] = [
                begin_all_gather(weights[start:stop], self.shard_group) for start, stop in layout.buckets
            ]

    def wait_for_weights(self, segment: int | None = None) -> None:
        for index in list(self._gathering) if segment is None else self.buffer.flats_of(segment):
            self._gathered(index)

    def _gathered(self, index: int) -> None:
        for work in self._gathering.pop(index, ()):
            work.wait()

    def _share_out(self, index: int, names: dict[nn.Parameter, str], dtype: torch.dtype) -> Tensor:
        """Make a flat tensor's parameters views of flat weights, which are returned; and list what is to be stepped."""
        layout, gradients = self.buffer.layouts[index], self.buffer.flats[index]
        drawn = torch.zeros_like(gradients)
        for parameter in layout.offsets:
            layout.view(drawn, parameter).copy_(parameter.detach())
        weights = drawn.to(dtype)
        for parameter in layout.offsets:
            parameter.data = layout.view(weights, parameter)
        shards = [self._shard(weights[low:high], drawn[low:high], gradients[low:high]) for low, high in layout.own]
        for parameter in layout.offsets:
            for first, number, place in layout.own_ranges(parameter):
                piece = nn.Parameter(shards[number].stepped[place])
                piece.grad = shards[number].stepped_gradients[place]
                part = Part(name=names[parameter], parameter=piece, num_dims=parameter.dim(), start=first)
                self.stepped.append(part)
        self._shards += shards
        return weights

    def _shard(self, weights: Tensor, drawn: Tensor, gradients: Tensor) -> _Shard:
        if self.offload:
            pinned = weights.device.type == "cuda"
            stepped, stepped_gradients = _on_cpu(drawn, pinned), _on_cpu(gradients, pinned)
        else:
            stepped, stepped_gradients = drawn.clone() if self.are_masters else weights, gradients
        return _Shard(weights=weights, gradients=gradients, stepped=stepped, stepped_gradients=stepped_gradients)


@dataclass(frozen=True, kw_only=True)
class _Shard:
    """This rank's share of a bucket."""

    weights: Tensor
    gradients: Tensor
    stepped: Tensor
    """The weights themselves, or their masters."""
    stepped_gradients: Tensor
    """The gradients themselves, or their copy on the CPU."""


def _on_cpu(tensor: Tensor, pinned: bool) -> Tensor:
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
    return copy.copy_(tensor)
