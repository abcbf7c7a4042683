"""The gradient buffer: every `.grad` is a view into a flat tensor, and data parallelism reduces it in large buckets.

No DDP: its hooks do not fire under schedules that compute weight gradients apart. Parameters come in segments, each
reduced as soon as it is said to be complete; what is left is reduced at the end of the step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gooseslo.parallel.data.exchange import Travelling, begin_reduce_scatter
from gooseslo.parallel.data.flat import FlatLayout, Sharding

BUCKET_BYTES = 25 * 1024 * 1024
"""Large enough that latency does not matter, small enough that several buckets travel at once (as torch's DDP)."""


LOW_PRECISION = (torch.bfloat16, torch.float16)


class GradientBuffer:
    """Gradients of segments of parameters, each segment in one flat tensor per dtype and device, in the given order.

    Those of 16-bit parameters are fp32: autograd adds each micro-batch in place in that view, and the sums over ranks
    are fp32 as well. After `reduce` a rank's own shards are whole; where nothing is shared out, all of it is.
    """

    def __init__(
        self,
        segments: Sequence[Sequence[nn.Parameter]],
        sharding: Sharding,
        *,
        bucket_bytes: int = BUCKET_BYTES,
    ):
        self.sharding = sharding
        self.layouts: list[FlatLayout] = []
        self.flats: list[Tensor] = []
        self.views: dict[nn.Parameter, Tensor] = {}
        self._segments: list[list[int]] = []
        """Of each segment, which flat tensors it has."""
        self._works: dict[int, list[Travelling]] = {}
        """Of the flat tensors whose reduction has begun."""
        for segment in segments:
            kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
            for parameter in segment:
                assert parameter not in self.views, "a parameter in two segments would be reduced twice"
                dtype = torch.float32 if parameter.dtype in LOW_PRECISION else parameter.dtype
                parameter.grad_dtype = dtype
                kinds.setdefault((dtype, parameter.device), []).append(parameter)
                self.views[parameter] = parameter  # replaced below
            self._segments.append([])
            for (dtype, device), members in kinds.items():
                layout = FlatLayout(members, sharding=sharding, bucket_elements=bucket_bytes // dtype.itemsize)
                flat = torch.zeros(layout.num_elements, dtype=dtype, device=device)
                for parameter in members:
                    self.views[parameter] = parameter.grad = layout.view(flat, parameter)
                self._segments[-1].append(len(self.flats))
                self.layouts.append(layout)
                self.flats.append(flat)

    def zero(self) -> None:
        """Forget the last step's gradients; replaces `optimizer.zero_grad()`, which would drop the views."""
        assert not self._works, "the last step's gradients are still being reduced"
        for flat in self.flats:
            flat.zero_()

    def begin_reduce(self, segment: int) -> None:
        """Start to sum a segment, to which nothing will be added in this step; all ranks in the same order."""
        for index in self._segments[segment]:
            if index not in self._works:
                self._works[index] = self._start(index)

    def reduce(self) -> None:
        """Sum over the data-parallel ranks; the loss is already divided by the whole step's tokens. Collective."""
        for parameter, view in self.views.items():
            assert parameter.grad is view, "a gradient has left the buffer: call zero(), never zero_grad()"
        for segment in range(len(self._segments)):
            self.begin_reduce(segment)
        for index, works in self._works.items():
            for work in works:
                work.wait()
            self._works[index] = self._sum_over_replicas(index) if self.sharding.shard_group is not None else []
        for works in self._works.values():
            for work in works:
                work.wait()
        self._works = {}

    def flats_of(self, segment: int) -> list[int]:
        """The numbers of a segment's flat tensors."""
        return self._segments[segment]

    def _start(self, index: int) -> list[Travelling]:
        flat, layout, group = self.flats[index], self.layouts[index], self.sharding.shard_group
        if group is None:
            return self._sum_over_replicas(index)
        return [begin_reduce_scatter(flat[start:stop], group) for start, stop in layout.buckets]

    def _sum_over_replicas(self, index: int) -> list[Travelling]:
        flat, group = self.flats[index], self.sharding.replica_group
        if group is None:
            return []
        own = self.layouts[index].own
        return [dist.all_reduce(flat[start:stop], group=group, async_op=True) for start, stop in own]
