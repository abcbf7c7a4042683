"""ZeRO's stages 2 and 3, by torch's FSDP2: the data-parallel ranks share out gradients and weights as well.

Each block of a stage is a group whose weights are gathered together; what else the stage has, embeddings, norm and
head, is one more, gathered as long as the stage computes. Gradients are summed and shared out after the backward pass
of every micro-batch, also in a pipeline: whole ones never gather, at the price of more messages.

Sources: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (arXiv:1910.02054),
section 5; Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (arXiv:2304.11277).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from gooseslo.parallel.collectives import Group
from gooseslo.parallel.data.strategy import Part
from gooseslo.parallel.shared import SharedGradients


@dataclass(frozen=True, kw_only=True)
class ShardedStage:
    """A stage of this rank, and the parts of it that are gathered one at a time."""

    module: nn.Module
    blocks: Sequence[nn.Module]


class FullySharded:
    """Each rank holds and steps some rows of every weight; a weight with fewer rows than ranks leaves some without."""

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        stages: Sequence[ShardedStage],
        *,
        dtype: torch.dtype,
        shard_group: dist.ProcessGroup,
        replica_group: Group = None,
        shared: Sequence[SharedGradients] = (),
        keep_gathered: bool = False,
    ):
        """Share out `parameters`, which are all those of `stages`, in place: the whole ones are freed.

        `dtype`: what the stages compute in; the shards stay in the finer dtype in which they come, and are their own
        masters. `shard_group`: the ranks that hold a copy together; `replica_group`: those that hold the same shards.
        With `keep_gathered` (stage 2) weights stay whole from their first use in a step to its end.
        """
        self.shard_group: Group = shard_group
        self.are_masters = any(parameter.dtype != dtype for parameter in parameters.values())
        self.flats: list[Tensor] = []
        self._dtype = dtype
        self._modules = [stage.module for stage in stages]
        owners = {p: owner for module in self._modules for p, owner in _owners(module)}
        shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        for stage in stages:
            _shard_stage(stage, shard_group, keep_gathered=keep_gathered, dtype=dtype if self.are_masters else None)
        self._shards: list[DTensor] = []
        self.stepped: list[Part] = []
        pieces: dict[nn.Parameter, nn.Parameter] = {}
        for name, parameter in parameters.items():
            module, key = owners[parameter]
            shard = module._parameters[key]
            assert isinstance(shard, DTensor), f"{name} is in no stage"
            rows = shard._local_tensor
            if rows.numel():
                pieces[parameter] = nn.Parameter(rows.detach().view(-1))
                start = _first_element(shapes[name], shard_group)
                part = Part(name=name, parameter=pieces[parameter], num_dims=parameter.dim(), start=start)
                self.stepped.append(part)
                self._shards.append(shard)
            parameter.data = parameter.data.new_empty(0)  # others may still hold the object
        self._shared = [_of_pieces(one, pieces) for one in shared]
        if replica_group is not None:
            own = {part.name: part.parameter for part in self.stepped}
            self._shared.append(SharedGradients(parameters=own, group=replica_group))

    @property
    def weights(self) -> list[Part]:
        """In the dtype of the computation; copies, where the shards are finer."""
        if not self.are_masters:
            return self.stepped
        return [replace(part, parameter=nn.Parameter(part.parameter.detach().to(self._dtype))) for part in self.stepped]

    def zero(self) -> None:
        self.flats.clear()
        for part, shard in zip(self.stepped, self._shards):
            part.parameter.grad = shard.grad = None

    def begin_reduce(self, segment: int) -> None:
        """Nothing to do: each backward pass has shared its gradients out."""

    @torch.no_grad()
    def reduce(self) -> None:
        """The sum over the shard group is done; what remains is to sum what other ranks see of the same shards."""
        self._forget_gathered()
        for part, shard in zip(self.stepped, self._shards):
            gradient = shard.grad
            if gradient is None:  # no micro-batch used the weight; an optimizer decays it all the same
                part.parameter.grad = torch.zeros_like(part.parameter)
            else:
                assert isinstance(gradient, DTensor)
                part.parameter.grad = gradient._local_tensor.view(-1)
        for shared in self._shared:
            shared.sum_()
        self.flats += [part.parameter.grad for part in self.stepped if part.parameter.grad is not None]

    def wait_for_weights(self, segment: int | None = None) -> None:
        """Nothing to do: FSDP2 gathers what a stage needs."""

    def write_back(self) -> None:
        """Weights are gathered from what was stepped; those of an evaluation may still be there from before."""
        self._forget_gathered()

    def _forget_gathered(self) -> None:
        for module in self._modules:
            for group in module.modules():
                if isinstance(group, FSDPModule):
                    group.reshard()


def _owners(module: nn.Module) -> Iterator[tuple[nn.Parameter, tuple[nn.Module, str]]]:
    """Each parameter, and a module that has it as which attribute."""
    for child in module.modules():
        for key, parameter in child.named_parameters(recurse=False):
            yield parameter, (child, key)


def _shard_stage(
    stage: ShardedStage, group: dist.ProcessGroup, *, keep_gathered: bool, dtype: torch.dtype | None
) -> None:
    """Hand a stage to FSDP2; `dtype`: of the gathered weights, where it is not that of the shards."""
    device = next(stage.module.parameters()).device
    mesh = DeviceMesh.from_group(group, device.type, mesh_dim_names=("dp",))
    stepped = next(stage.module.parameters()).dtype
    policy = MixedPrecisionPolicy(cast_forward_inputs=False)
    if dtype is not None:
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=stepped, cast_forward_inputs=False)
    stage.module.register_forward_hook(_without_views)
    for module in (*stage.blocks, stage.module):
        others = {*module._forward_pre_hooks, *module._forward_hooks}
        wrapped = fully_shard(module, mesh=mesh, reshard_after_forward=not keep_gathered, mp_policy=policy)
        if module is not stage.module:
            _move_inwards(module, others)
        # The loss is divided by the whole step's tokens already. Only with "sums alone" does gloo take a factor.
        wrapped.set_gradient_divide_factor(1.0)
        wrapped.set_force_sum_reduction_for_comms(True)
        wrapped.set_reshard_after_backward(not keep_gathered)


def _without_views(module: nn.Module, args: object, output: Tensor) -> Tensor:
    """FSDP2 hangs the gathering of the backward pass on the output, and a view could lose it."""
    return output.clone() if output._is_view() else output


def _move_inwards(module: nn.Module, others: Set[int]) -> None:
    """Put FSDP2's hooks next to the computation, inside the `others`.

    Sequence parallelism exchanges a block's input and output for stand-ins that have no gradient, on which FSDP2
    could hang nothing.
    """
    before, after = module._forward_pre_hooks, module._forward_hooks
    for hook in [hook for hook in before if hook not in others]:
        before[hook] = before.pop(hook)
    for hook in [hook for hook in after if hook in others]:
        after[hook] = after.pop(hook)


def _first_element(shape: tuple[int, ...], group: dist.ProcessGroup) -> int:
    """Of this rank's rows in the weight, row by row: as torch.chunk parts them."""
    rows = -(-shape[0] // group.size())
    return group.rank() * rows * prod(shape[1:])


def _of_pieces(shared: SharedGradients, pieces: dict[nn.Parameter, nn.Parameter]) -> SharedGradients:
    """The same of the shards: ranks that share a weight have the same rows of it, since their dp rank is the same."""
    own = {name: pieces[parameter] for name, parameter in shared.parameters.items() if parameter in pieces}
    return SharedGradients(parameters=own, group=shared.group)
