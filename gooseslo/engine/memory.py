"""Estimated bytes of a rank: weights, gradients, optimizer state, and the activations its schedule keeps at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gooseslo.engine.precision import Dtypes
from gooseslo.engine.probe import LayerCosts, Probe, Workload, build_stage, example, forward, layer_costs
from gooseslo.parallel.names import lookup
from gooseslo.parallel.pipeline.partition import layer_ranges
from gooseslo.parallel.pipeline.placement import StagePlacement
from gooseslo.parallel.recompute import recomputed_parts
from gooseslo.parallel.tensor.apply import part_placements
from gooseslo.policies.policy import Policy
from gooseslo.policies.registry import find_policy
from gooseslo.schema.groups import AdafactorConfig, OptimizerConfig, SGDConfig, ZeroConfig
from gooseslo.schema.schedule_table import Table, held

_META = torch.device("meta")


@dataclass(frozen=True, kw_only=True)
class ParameterBytes:
    """What one parameter of the model costs on a rank that holds it."""

    weight: float
    gradient: float
    optimizer: float
    """Masters and moments."""

    @property
    def total(self) -> float:
        return self.weight + self.gradient + self.optimizer


def parameter_bytes(dtypes: Dtypes, optimizer: OptimizerConfig, zero: ZeroConfig, *, sharing: int) -> ParameterBytes:
    """Over `sharing` ranks stage 1 of ZeRO shards the optimizer's state, 2 the gradients too, 3 the weights too.

    On the device that computes: what is offloaded costs nothing there.
    """
    if isinstance(optimizer, SGDConfig):
        moments = 1 if optimizer.momentum else 0
    else:  # of torch's classes most keep two; Adafactor's rows and columns weigh next to nothing
        moments = 0 if isinstance(optimizer, AdafactorConfig) else 2
    state = dtypes.stepped.itemsize * (moments + (dtypes.weights != dtypes.stepped))
    return ParameterBytes(
        weight=dtypes.weights.itemsize / (sharing if zero.stage >= 3 else 1),
        gradient=dtypes.stepped.itemsize / (sharing if zero.stage >= 2 else 1),
        optimizer=0.0 if zero.offload else state / (sharing if zero.stage >= 1 else 1),
    )


def parts_numel(model: Any, policy: Policy, units: Iterable[str], *, tp: int, rank: int) -> int:
    """Parameters of these modules that a tp rank holds, a tied one once, worked out on the whole meta model."""
    seen: set[nn.Parameter] = set()
    total = 0
    for unit in units:
        for name, module in model.get_submodule(unit).named_modules(prefix=unit):
            own = [p for p in module.parameters(recurse=False) if p not in seen]
            seen.update(own)
            split = lookup(policy.splits, name) if tp > 1 else None
            if split is None or not own:
                total += sum(p.numel() for p in own)
            else:
                parts = part_placements(module, split, name, tp=tp, rank=rank, config=model.config)
                total += sum(torch.Size(placement.local_shape).numel() for placement in parts.values())
    return total


def local_numel(model: Any, policy: Policy, counts: list[int], *, stages: Sequence[int], tp: int, rank: int) -> int:
    """Parameters that a tp rank with these stages holds."""
    layers = [layer_ranges(counts)[stage] for stage in stages]
    units = [f"{policy.layers}.{index}" for each in layers for index in each]
    units += [*(policy.first if 0 in stages else ()), *(policy.last if len(counts) - 1 in stages else ())]
    return parts_numel(model, policy, units, tp=tp, rank=rank)


class RankBytes:
    """Bytes of each pipeline rank by layers per stage; of its first tp rank, which has the most of the vocabulary."""

    def __init__(
        self,
        model: Any,
        policy: Policy,
        workload: Workload,
        placement: StagePlacement,
        table: Table,
        *,
        parameter: ParameterBytes,
    ):
        self._placement = placement
        self._held = [held(row) for row in table]
        self._activations = activation_bytes(workload)

        def numel(*units: str) -> int:
            return parts_numel(model, policy, units, tp=workload.tp, rank=0)

        self._layers = [parameter.total * numel(f"{policy.layers}.{index}") for index in range(workload.num_layers)]
        self._first, self._last = (parameter.total * numel(*units) for units in (policy.first, policy.last))
        self._both = parameter.total * numel(*policy.first, *policy.last)

    def __call__(self, counts: Sequence[int]) -> list[float]:
        """Each rank's weights, gradients, optimizer state, and the activations of its fullest moment."""
        ranges = layer_ranges(counts)
        activations = [sum(self._activations.layers[each.start : each.stop]) for each in ranges]
        activations[0] += self._activations.first
        activations[-1] += self._activations.last
        totals = []
        for rank, moments in enumerate(self._held):
            stages = self._placement.stages_of(rank)
            state = sum(sum(self._layers[ranges[stage].start : ranges[stage].stop]) for stage in stages)
            has_first, has_last = 0 in stages, len(counts) - 1 in stages
            ends = self._both if has_first and has_last else self._first * has_first + self._last * has_last
            fullest = max(sum(count * activations[stage] for stage, count in moment) for moment in moments)
            totals.append(state + ends + fullest)
        return totals


def activation_bytes(workload: Workload) -> LayerCosts:
    """What autograd keeps of one micro-batch from a forward to its backward pass; traced on the meta device.

    That device has no autocast: there all is counted in fp32, which is the most it can be.
    """
    workload = replace(workload, dtypes=replace(workload.dtypes, autocast=None))
    policy = find_policy(workload.config.model_type, workload.head)

    def kept(probe: Probe) -> float:
        stage = build_stage(workload, probe, _META)
        x, labels = example(workload, probe, _META)
        own = {p.untyped_storage()._cdata for p in stage.parameters()}
        storages: dict[int, torch.UntypedStorage] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in own:
                storages[storage._cdata] = storage  # held, so that no other one takes its place
            return tensor

        for part in recomputed_parts(stage.stage.model, policy, workload.recomputed):
            part.forward = _keeping_inputs(part.forward, pack)  # type: ignore[method-assign]
        # A mask of its own: the model would look into the positions, which have no values here. Under a mask grouped
        # key-value heads are repeated, so these count a little more than they may be.
        mask = torch.empty(workload.samples, 1, *[workload.sequence_length] * 2, dtype=torch.bool, device=_META)
        own.add(mask.untyped_storage()._cdata)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), _FusedAttention():
            forward(stage, probe, x, labels, attention_mask=mask)
        return float(sum(storage.nbytes() for storage in storages.values()))

    return layer_costs(workload, kept)


def _keeping_inputs(forward: Callable[..., Any], keep: Callable[[Tensor], object]) -> Callable[..., Any]:
    """What is computed again in the backward pass: only its inputs are kept."""

    def run(*args: Any, **kwargs: Any) -> Any:
        for arg in (*args, *kwargs.values()):
            if isinstance(arg, Tensor):
                keep(arg)
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            return forward(*args, **kwargs)

    return run


class _FusedAttention(TorchFunctionMode):
    """Attention keeps its inputs and its output, as the fused kernels of real devices do, and never the scores."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            given = [*args, *(kwargs or {}).values()]
            query, key, value = [each for each in given if isinstance(each, Tensor)][:3]
            return _Fused.apply(query, key, value)
        return func(*args, **(kwargs or {}))


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = query.new_empty(*query.shape[:-1], value.shape[-1])
        ctx.save_for_backward(query, key, value, output)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> None:
        raise AssertionError("nothing goes backward on the meta device")
