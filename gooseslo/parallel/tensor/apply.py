"""Splitting a stock model in place, by its policy: layers are exchanged, attributes divided, placements returned.

Runs on the meta device, before any weight exists, so a rank never holds a full tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gooseslo.errors import TopologyError
from gooseslo.parallel.collectives import Group
from gooseslo.parallel.names import lookup, matches
from gooseslo.parallel.tensor.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    VocabParallelHead,
)
from gooseslo.parallel.tensor.layouts import (
    Placement,
    split_evenly,
    split_key_values,
    split_placement,
    split_vocabulary,
    whole,
)
from gooseslo.parallel.tensor.regions import attach_regions
from gooseslo.policies.policy import Column, KeyValueColumn, Policy, Row, Split, VocabEmbedding, VocabHead


def split_model(
    model: Any, policy: Policy, *, tp: int, rank: int, group: Group, sequence_parallel: bool = False
) -> dict[str, Placement]:
    """Exchange the layers that `policy` splits for the rank's parts; give every parameter's placement by name.

    `model` is a stock model or a stage of one: names that it lacks are skipped (the lint has checked them on the whole
    model). With tp=1 nothing is exchanged. A parameter tied on this stage stays one Parameter object.
    """
    placements = {name: whole(tuple(p.shape)) for name, p in model.named_parameters(remove_duplicate=False)}
    if tp == 1:
        return placements
    exchanged: dict[nn.Parameter, nn.Parameter] = {}
    for name, module in list(model.named_modules()):
        split = lookup(policy.splits, name)
        if split is None or f"{name}.weight" not in placements:  # not split, or a stand-in for another stage's
            continue
        owned = part_placements(module, split, name, tp=tp, rank=rank, config=model.config)
        placements |= {f"{name}.{key}": placement for key, placement in owned.items()}
        parts = {key: _part(module.get_parameter(key), owned[key], exchanged) for key in owned}
        model.set_submodule(name, _part_layer(module, split, parts, owned, group, sequence_parallel))
    copies = max(placement.copies for placement in placements.values())
    for divided, divisor in ((policy.divided, tp), (policy.divided_by_copies, copies)):
        for pattern, attributes in divided.items():
            for name, module in model.named_modules():
                if matches(pattern, name):
                    _divide(module, name, attributes, divisor)
    attach_regions(model, policy, group=group, sequence_parallel=sequence_parallel)
    return placements


def _divide(module: nn.Module, name: str, attributes: tuple[str, ...], divisor: int) -> None:
    for attribute in attributes:
        _check_divides(f"{name}.{attribute}", getattr(module, attribute), divisor)
        setattr(module, attribute, getattr(module, attribute) // divisor)


def part_placements(
    module: nn.Module, split: Split, name: str, *, tp: int, rank: int, config: Any
) -> dict[str, Placement]:
    """The placement of each parameter of one split layer; TopologyError where tp does not divide it.

    `config`: the model's, which has the number of key-value heads.
    """
    weight = module.get_parameter("weight")
    shape = tuple(weight.shape)
    out_dim, in_dim = (1, 0) if is_transposed(module) else (0, 1)
    result: dict[str, Placement] = {}
    copies = 1
    if isinstance(split, VocabEmbedding | VocabHead):
        result["weight"] = split_placement(shape, 0, split_vocabulary(shape[0], tp, rank))
        bias_ranges = split_vocabulary(shape[0], tp, rank)
    elif isinstance(split, Column):
        _check_divides(name, shape[out_dim] // split.blocks, tp)
        bias_ranges = split_evenly(shape[out_dim], tp, rank, blocks=split.blocks)
        result["weight"] = split_placement(shape, out_dim, bias_ranges)
    elif isinstance(split, KeyValueColumn):
        heads: int = getattr(config, split.heads)
        if heads % tp and tp % heads:
            raise TopologyError(f"parallel.tp={tp}: neither divides the {heads} heads of {name} nor is a multiple")
        copies = max(1, tp // heads)
        bias_ranges = split_key_values(shape[out_dim], tp, rank, heads=heads)
        result["weight"] = split_placement(shape, out_dim, bias_ranges, copies=copies)
    else:
        _check_divides(name, shape[in_dim], tp)
        result["weight"] = split_placement(shape, in_dim, split_evenly(shape[in_dim], tp, rank))
        bias_ranges = None
    if getattr(module, "bias", None) is not None:
        bias_shape = tuple(module.get_parameter("bias").shape)
        result["bias"] = (
            whole(bias_shape) if bias_ranges is None else split_placement(bias_shape, 0, bias_ranges, copies=copies)
        )
    return result


def is_transposed(module: nn.Module) -> bool:
    """Whether the layer stores its weight as [in, out]: transformers' `Conv1D`, known by its `nf` (output features)."""
    return not isinstance(module, nn.Linear | nn.Embedding) and hasattr(module, "nf")


def _check_divides(name: str, size: int, tp: int) -> None:
    if size % tp:
        raise TopologyError(f"parallel.tp={tp}: does not divide the {size} of {name}")


def _part(full: nn.Parameter, placement: Placement, exchanged: dict[nn.Parameter, nn.Parameter]) -> nn.Parameter:
    """An empty parameter of the local shape; the same object again for a tied one."""
    if full not in exchanged:
        empty = torch.empty(placement.local_shape, dtype=full.dtype, device=full.device)
        exchanged[full] = nn.Parameter(empty, requires_grad=full.requires_grad)
    return exchanged[full]


def _part_layer(
    module: nn.Module,
    split: Split,
    parts: dict[str, nn.Parameter],
    placements: dict[str, Placement],
    group: Group,
    sequence_parallel: bool,
) -> nn.Module:
    weight, bias = parts["weight"], parts.get("bias")
    layer: nn.Module
    if isinstance(split, Column | KeyValueColumn):
        layer = ColumnParallelLinear(weight, bias, transposed=is_transposed(module))
    elif isinstance(split, Row):
        layer = RowParallelLinear(
            weight, bias, group=group, transposed=is_transposed(module), sequence_parallel=sequence_parallel
        )
    elif isinstance(split, VocabEmbedding):
        start, padding_idx = placements["weight"].boxes[0][0][0], getattr(module, "padding_idx", None)
        layer = VocabParallelEmbedding(weight, start=start, group=group, padding_idx=padding_idx)
    else:
        layer = VocabParallelHead(weight, bias, group=group)
    return layer.train(module.training)
