"""ZeRO's stages by DeepSpeed: it shares out masters, reduces gradients and gathers weights, and does nothing else.

Norm, clipping, loss scale, optimizer and checkpoints are the run's own: DeepSpeed is given an optimizer that does
nothing, and its flat partitions are what the run's optimizer steps, cut into ranges of weights. This is the one module
that imports deepspeed; it leans on attributes of its optimizers, so it asks for them at the start.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gooseslo.errors import ConfigError, Fault
from gooseslo.parallel.collectives import Group
from gooseslo.parallel.data.strategy import Part
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.parallel.shared import SharedGradients
from gooseslo.schema.deepspeed_keys import ZERO
from gooseslo.schema.keys import DEEPSPEED_KEY

TESTED = "0.19.8"
_COMPILED = "deepspeed_shm_comm"
"""DeepSpeed's name for what it would compile."""
_NEEDED_AT_1_AND_2 = (
    "params_in_partition",
    "grad_start_offset",
    "grad_partition_insertion_offset",
    "partition_size",
    "single_partition_of_fp32_groups",
    "averaged_gradients",
    "all_grad_tensors",
    "micro_step_id",
    "get_param_id",
    "setup_buckets",
    "reduce_gradients",
    "finalize_gradient_accumulation_boundary",
    "update_lp_params",
)
_NEEDED_AT_3 = (
    "fp16_groups",
    "fp32_partitioned_groups_flat",
    "grad_partitions_flat_buffer",
    "micro_step_id",
    "_partition_all_parameters",
    "_reassign_or_swap_out_partitioned_parameters",
    "_post_step",
)
"""Of DeepSpeed's optimizers."""


class DeepSpeedZero:
    """Stages 0 to 2. `stepped` are whole weights at stage 0, else ranges in the partition of this rank."""

    are_masters = False

    def __init__(
        self,
        segments: Sequence[dict[str, nn.Parameter]],
        module: nn.Module,
        *,
        stage: int,
        context: ParallelContext,
        shared: Sequence[SharedGradients] = (),
        settings: Mapping[str, Any] = MappingProxyType({}),
    ):
        """`module` has all parameters of `segments`, each of which becomes a group of DeepSpeed's own.

        Ranks that hold copies have them in one segment alike, and so have the same ranges of them.
        """
        assert context.dp_group is not None, "nobody shares"
        self.group: dist.ProcessGroup = context.dp_group
        self.shard_group: Group = None if stage == 0 else self.group
        self.stage = stage
        parameters = {name: p for segment in segments for name, p in segment.items()}
        for parameter in parameters.values():
            parameter.grad = None
        self.weights = [Part(name=name, parameter=p, num_dims=p.dim()) for name, p in parameters.items()]
        self.engine = _engine(
            module, [list(s.values()) for s in segments], stage=stage, context=context, settings=settings
        )
        self.flats: list[Tensor] = []
        if stage == 0:
            self.stepped, self._shared = self.weights, list(shared)
            return
        self._optimizer = self.engine.optimizer
        _check(self._optimizer, _NEEDED_AT_1_AND_2)
        names = {parameter: name for name, parameter in parameters.items()}
        self.stepped, self._places, pieces = [], [], {}
        for index in range(len(self._optimizer.params_in_partition)):
            masters = self._optimizer.single_partition_of_fp32_groups[index].detach()
            for parameter, first, place in self._ranges(index):
                piece = nn.Parameter(masters[place])
                pieces[parameter] = piece
                self._places.append((index, place))
                self.stepped.append(Part(name=names[parameter], parameter=piece, num_dims=parameter.dim(), start=first))
        self._shared = [_of_pieces(one, pieces) for one in shared]

    @property
    def called(self) -> Callable[..., Tensor] | None:
        """What to call in place of the stage: at stage 2 DeepSpeed shares out the gradients of each backward pass."""
        return self.engine if self.stage == 2 else None

    def zero(self) -> None:
        self.flats = []
        for part in (*self.stepped, *self.weights):
            part.parameter.grad = None
        if self.stage:
            self._optimizer.zero_grad(set_to_none=True)
            self._forget()
            self._optimizer.micro_step_id = -1

    def begin_reduce(self, segment: int) -> None:
        """Nothing to do: DeepSpeed has a time of its own for it."""

    @torch.no_grad()
    def reduce(self) -> None:
        """DeepSpeed averages over the data-parallel ranks; the loss wants sums."""
        if self.stage == 0:
            self._reduce_whole()
            return
        self._take_sums()
        for shared in self._shared:
            shared.sum_()

    def write_back(self) -> None:
        """From the masters to the weights, and to all ranks."""
        if self.stage:
            self._optimizer.update_lp_params()

    def wait_for_weights(self, segment: int | None = None) -> None:
        """Nothing travels."""

    def _reduce_whole(self) -> None:
        for part in self.weights:
            if part.parameter.grad is None:  # no micro-batch used the weight; an optimizer decays it all the same
                part.parameter.grad = torch.zeros_like(part.parameter)
        for shared in self._shared:
            shared.sum_()
        self.engine.allreduce_gradients()
        self.flats = [part.parameter.grad for part in self.weights if part.parameter.grad is not None]
        torch._foreach_mul_(self.flats, self.group.size())

    def _take_sums(self) -> None:
        optimizer = self._optimizer
        if self.stage == 1:
            optimizer.set_gradient_accumulation_boundary(True)
            optimizer.setup_buckets()
            optimizer.reduce_gradients()
        else:
            optimizer.finalize_gradient_accumulation_boundary()
        for index, size in enumerate(optimizer.partition_size):
            flat = torch.cat([gradient.reshape(-1) for gradient in optimizer.averaged_gradients[index]])
            assert flat.numel() == size, "DeepSpeed's gradients are not those of its partition"
            self.flats.append(flat.mul_(self.group.size()))
        self._forget()
        for part, (index, place) in zip(self.stepped, self._places, strict=True):
            part.parameter.grad = self.flats[index][place]

    def _forget(self) -> None:
        """DeepSpeed's own step would do it."""
        for index in range(len(self._optimizer.params_in_partition)):
            self._optimizer.averaged_gradients[index] = None
            self._optimizer.all_grad_tensors[index] = None

    def _ranges(self, index: int) -> Iterator[tuple[nn.Parameter, int, slice]]:
        """Of a group's partition: (weight, first element in it, place in the partition)."""
        optimizer, rank = self._optimizer, self.group.rank()
        starts = optimizer.grad_start_offset[index][rank]
        places = optimizer.grad_partition_insertion_offset[index][rank]
        for parameter in optimizer.params_in_partition[index]:
            number = optimizer.get_param_id(parameter)
            first, place = int(starts[number]), int(places[number])
            length = min(parameter.numel() - first, int(optimizer.partition_size[index]) - place)
            yield parameter, first, slice(place, place + length)


class DeepSpeedShardedWeights:
    """Stage 3. `stepped` are ranges of the weights, and all that this rank holds of them between steps."""

    are_masters = False

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        module: nn.Module,
        blocks: Sequence[nn.Module],
        *,
        context: ParallelContext,
        shared: Sequence[SharedGradients] = (),
        settings: Mapping[str, Any] = MappingProxyType({}),
    ):
        """`blocks` of the module are gathered as one each: recomputation inside one passes by its modules' hooks."""
        assert context.dp_group is not None, "nobody shares"
        self.shard_group: Group = context.dp_group
        self._num_ranks, rank = context.dp_group.size(), context.dp_group.rank()
        names = {parameter: name for name, parameter in parameters.items()}
        sizes = {parameter: (parameter.numel(), parameter.dim()) for parameter in names}
        for block in blocks:
            block._z3_leaf = True  # type: ignore[assignment]
        self.called = _engine(_Root(module), [list(names)], stage=3, context=context, settings=settings)
        self._optimizer = self.called.optimizer
        _check(self._optimizer, _NEEDED_AT_3)
        self.flats: list[Tensor] = [self._optimizer.grad_partitions_flat_buffer]
        self.stepped: list[Part] = []
        pieces, position = {}, 0
        for group, masters in zip(self._optimizer.fp16_groups, self._optimizer.fp32_partitioned_groups_flat):
            place = 0
            for parameter in group:
                numel, num_dims = sizes[parameter]
                share = parameter.partition_numel()
                first, length = rank * share, min(share, numel - rank * share)
                if length > 0:
                    piece = nn.Parameter(masters.detach()[place : place + length])
                    piece.grad = self.flats[0][position : position + length]
                    pieces[parameter] = piece
                    self.stepped.append(Part(name=names[parameter], parameter=piece, num_dims=num_dims, start=first))
                place, position = place + share, position + share
        self.weights = self.stepped
        self._shared = [_of_pieces(one, pieces) for one in shared]

    def zero(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self.flats[0].zero_()
        self._optimizer.micro_step_id = 1  # each micro-batch is added, the first to zeros: one may not use a weight

    def begin_reduce(self, segment: int) -> None:
        """Nothing to do: DeepSpeed reduces in each backward pass."""

    @torch.no_grad()
    def reduce(self) -> None:
        """DeepSpeed averages over the data-parallel ranks; the loss wants sums."""
        self.flats[0].mul_(self._num_ranks)
        for shared in self._shared:
            shared.sum_()

    def write_back(self) -> None:
        """What is gathered at the moment is old: weights too small to be shared out stay gathered."""
        self._optimizer._partition_all_parameters()
        for index in range(len(self._optimizer.fp16_groups)):
            self._optimizer._reassign_or_swap_out_partitioned_parameters(index)
        self._optimizer._post_step(set())

    def wait_for_weights(self, segment: int | None = None) -> None:
        """Nothing travels."""


class _Root(nn.Module):
    """DeepSpeed's hooks of stage 3 do not see the outermost module."""

    def __init__(self, stage: nn.Module):
        super().__init__()
        self.stage = stage

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.stage(*args, **kwargs)


class _NoUpdate(torch.optim.Optimizer):
    """What DeepSpeed is given: the run's own optimizer steps its partitions."""

    def __init__(self, groups: list[dict[str, Any]]):
        super().__init__(groups, {"lr": 0.0})

    def step(self, closure: Any = None) -> Any:
        """Nothing."""


def check_settings(settings: Mapping[str, Any], *, device: str) -> None:
    """ConfigError for what DeepSpeed itself has against its keys of ZeRO; takes the seconds of its import."""
    _settle(device)
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from pydantic import ValidationError

    try:
        DeepSpeedZeroConfig(**settings.get(ZERO, {}))
    except ValidationError as error:
        faults = [
            Fault(
                key=".".join((DEEPSPEED_KEY, ZERO, *map(str, each["loc"]))),
                value=each["input"],
                rule=f"DeepSpeed refuses it: {each['msg']}",
            )
            for each in error.errors()
        ]
        raise ConfigError(faults) from None


def _engine(
    module: nn.Module,
    groups: list[list[nn.Parameter]],
    *,
    stage: int,
    context: ParallelContext,
    settings: Mapping[str, Any],
) -> Any:
    """DeepSpeed's engine; it reads ranks from the environment, whoever started them."""
    os.environ.setdefault("LOCAL_RANK", str(context.rank))
    _settle(next(module.parameters()).device.type)
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # Its collectives in shared memory of CPUs: compiled at first use, half a minute with g++, and a lock file stays
    # behind where that is killed, for which every later run would wait. gloo does the same.
    deepspeed.ops.__compatible_ops__[_COMPILED] = False
    config = {
        "train_micro_batch_size_per_gpu": 1,  # it counts with it alone
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": stage < 2,
        "gradient_clipping": 0.0,  # left out, it would be 1.0
        "zero_allow_untested_optimizer": True,
        **settings,
        ZERO: {"overlap_comm": False, **settings.get(ZERO, {}), "stage": stage},
    }
    optimizer = _NoUpdate([{"params": group} for group in groups])
    engine, *_ = deepspeed.initialize(
        model=module, optimizer=optimizer, config=config, mpu=context, dist_init_required=False
    )
    return engine


def _settle(device: str) -> None:
    """Before its import: DeepSpeed would take a device that it finds, used or not, and warn of one that it does not."""
    os.environ.setdefault("DS_ACCELERATOR", device)


def _check(optimizer: Any, needed: Sequence[str]) -> None:
    missing = [name for name in needed if not hasattr(optimizer, name)]
    if missing:
        rule = f"this DeepSpeed has no {', '.join(missing)}; {TESTED} is tested"
        way_out = f"pip install deepspeed=={TESTED}, or zero.backend=torch"
        raise ConfigError([Fault(key="zero.backend", value="deepspeed", rule=rule, way_out=way_out)])


def _of_pieces(shared: SharedGradients, pieces: dict[nn.Parameter, nn.Parameter]) -> SharedGradients:
    """The same of the ranges: ranks that share a weight have the same range of it, since their dp rank is the same."""
    own = {name: pieces[parameter] for name, parameter in shared.parameters.items() if parameter in pieces}
    return SharedGradients(parameters=own, group=shared.group)
