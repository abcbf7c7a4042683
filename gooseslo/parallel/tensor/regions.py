"""The tensor-parallel regions of a block (attention, MLP): what is done once at the input of each.

Without sequence parallelism the input is equal on all tp ranks, and the gradients of all its uses are summed in one
message. With it the input is a sequence shard, which is gathered once for all column layers of the region.

Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (arXiv:2205.05198),
section 4.2.2: only the shard is kept for the backward pass, which gathers it again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gooseslo.parallel.collectives import Group, all_gather_sequence
from gooseslo.parallel.names import matches
from gooseslo.parallel.tensor.layers import ColumnParallelLinear
from gooseslo.parallel.tensor.overlap import WeightTaker, copy_to_region, gather_for_region
from gooseslo.policies.policy import Policy


def attach_regions(model: nn.Module, policy: Policy, *, group: Group, sequence_parallel: bool) -> None:
    """Make each region of `model` enter tensor parallelism at its input; nothing to do for a group of one.

    The regions' forward and backward passes are then collective over `group` (tp).
    """
    if group is None:
        return
    for name, module in model.named_modules():
        if any(matches(pattern, name) for pattern in policy.regions):
            layers = [each for each in module.modules() if isinstance(each, ColumnParallelLinear)]
            if sequence_parallel:
                _SequenceRegion(group, layers).attach(module)
            else:
                on_input(module, functools.partial(copy_to_region, layers=layers, group=group))


def on_input(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Have `module` take `change(hidden states)` for its hidden states: its first argument, or `hidden_states`."""

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": change(kwargs["hidden_states"])}

    module.register_forward_pre_hook(before, with_kwargs=True)


class _SequenceRegion:
    """Gathers the shard at the region's input; the column layers save the shard in place of the whole."""

    def __init__(self, group: dist.ProcessGroup, layers: Sequence[WeightTaker]):
        self._group, self._layers = group, layers
        self._saving: torch.autograd.graph.saved_tensors_hooks | None = None
        self._whole: Tensor | None = None

    def attach(self, module: nn.Module) -> None:
        on_input(module, self._enter)
        module.register_forward_hook(self._leave, always_call=True)

    def _enter(self, shard: Tensor) -> Tensor:
        if torch.is_autocast_enabled(shard.device.type):
            # Else each column layer would cast the whole for itself, and autograd keep each of the casts.
            shard = shard.to(torch.get_autocast_dtype(shard.device.type))
        whole = gather_for_region(shard, self._layers, self._group)
        if torch.is_grad_enabled():
            gathered = _Gathered(shard.detach(), whole, self._group)
            self._saving = torch.autograd.graph.saved_tensors_hooks(gathered.pack, _unpack)
            self._saving.__enter__()
            # Kept to the region's end: the whole is known by its address, which must not go to another tensor.
            self._whole = whole
        return whole

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._saving is not None:
            self._saving.__exit__()
            self._saving = self._whole = None


class _Gathered:
    """A gathered sequence of which only this rank's shard is kept, until the backward pass asks for the whole."""

    def __init__(self, shard: Tensor, whole: Tensor, group: dist.ProcessGroup):
        self._shard, self._group = shard, group
        self._whole_at, self._whole_size = whole.data_ptr(), whole.numel()
        self._num_saved, self._num_used = 0, 0
        self._again: Tensor | None = None

    def pack(self, tensor: Tensor) -> Tensor | _Saved:
        """What autograd keeps of a tensor that an operation in the region saves."""
        if (tensor.data_ptr(), tensor.numel()) != (self._whole_at, self._whole_size) or not tensor.is_contiguous():
            return tensor
        self._num_saved += 1
        return _Saved(self, tuple(tensor.shape))

    def whole(self) -> Tensor:
        """The whole again: gathered for the first use of a backward pass, given free after the last. Collective."""
        if self._again is None:
            self._again = all_gather_sequence(self._shard, self._group)
        whole = self._again
        self._num_used += 1
        if self._num_used == self._num_saved:
            self._again, self._num_used = None, 0
        return whole


class _Saved:
    """A place in the graph that saved the whole, in some shape."""

    def __init__(self, gathered: _Gathered, shape: tuple[int, ...]):
        self.gathered, self.shape = gathered, shape


def _unpack(saved: Tensor | _Saved) -> Tensor:
    return saved if isinstance(saved, Tensor) else saved.gathered.whole().view(saved.shape)
