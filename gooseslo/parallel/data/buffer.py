"""The flat gradient buffer: every `.grad` is a view into it, and data parallelism reduces it in large buckets.

No DDP: its hooks do not fire under schedules that compute weight gradients apart. The reduction runs once a step,
after the stage's last backward.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gooseslo.parallel.collectives import Group

BUCKET_BYTES = 25 * 1024 * 1024
"""Large enough that latency does not matter, small enough that several buckets travel at once (as torch's DDP)."""


LOW_PRECISION = (torch.bfloat16, torch.float16)


class GradientBuffer:
    """Gradients of `parameters`, in one flat tensor per dtype and device, in the given order.

    Those of 16-bit parameters are fp32: autograd adds each micro-batch in place in that view, and the sums over ranks
    are fp32 as well.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], group: Group, *, bucket_bytes: int = BUCKET_BYTES):
        self.group = group
        self.flats: list[Tensor] = []
        self.buckets: list[Tensor] = []
        self.views: dict[nn.Parameter, Tensor] = {}
        kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        for parameter in dict.fromkeys(parameters):
            dtype = torch.float32 if parameter.dtype in LOW_PRECISION else parameter.dtype
            parameter.grad_dtype = dtype
            kinds.setdefault((dtype, parameter.device), []).append(parameter)
        for (dtype, device), members in kinds.items():
            flat = torch.zeros(sum(p.numel() for p in members), dtype=dtype, device=device)
            offset = 0
            for parameter in members:
                parameter.grad = flat[offset : offset + parameter.numel()].view_as(parameter)
                self.views[parameter] = parameter.grad
                offset += parameter.numel()
            self.flats.append(flat)
            self.buckets += flat.split(max(1, bucket_bytes // flat.element_size()))

    def zero(self) -> None:
        """Forget the last step's gradients; replaces `optimizer.zero_grad()`, which would drop the views."""
        for flat in self.flats:
            flat.zero_()

    def reduce(self) -> None:
        """Sum over the data-parallel group; the loss is already divided by the whole step's tokens. Collective."""
        for parameter, view in self.views.items():
            assert parameter.grad is view, "a gradient has left the buffer: call zero(), never zero_grad()"
        if self.group is None:
            return
        works = [dist.all_reduce(bucket, group=self.group, async_op=True) for bucket in self.buckets]
        for work in works:
            work.wait()
