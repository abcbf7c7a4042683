"""What a layer costs: stages of one layer each, and what the two ends of the model add to theirs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from gooseslo.engine.hf import empty_model
from gooseslo.engine.precision import CastStage, Dtypes
from gooseslo.engine.step import StepLoss
from gooseslo.kernels.activation import fuse_activations
from gooseslo.parallel.pipeline.stage import StageModule, cut_stage
from gooseslo.parallel.recompute import attach_recomputation
from gooseslo.parallel.tensor.apply import split_model
from gooseslo.policies.policy import SCORE
from gooseslo.policies.registry import CLASSIFICATION, find_policy


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a rank computes for one micro-batch; small, and sent to the process that measures."""

    config: PretrainedConfig
    head: str
    tp: int
    samples: int
    sequence_length: int
    dtypes: Dtypes
    recomputed: str | int
    """As `train.activation_checkpointing` has it."""

    @property
    def num_layers(self) -> int:
        return int(self.config.num_hidden_layers)

    def recomputes(self, layer: int) -> bool:
        """Whether a layer, or its attention, is computed again in the backward pass."""
        return layer % self.recomputed == 0 if isinstance(self.recomputed, int) else self.recomputed != "none"


@dataclass(frozen=True, kw_only=True)
class LayerCosts:
    """In any unit; layers of equal structure cost the same."""

    layers: tuple[float, ...]
    first: float
    """Of what the first stage has besides: the embedding."""
    last: float
    """Of what the last stage has besides: the final norm, the head and the loss."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A stage of one layer."""

    layer: int
    is_first: bool = False
    is_last: bool = False


def probes(workload: Workload) -> tuple[dict[int, Probe], Probe, Probe]:
    """What there is to measure: a layer of each kind by its number, the first stage and the last."""
    kinds = _kinds(workload)
    first, last = Probe(layer=0, is_first=True), Probe(layer=workload.num_layers - 1, is_last=True)
    return {layer: Probe(layer=layer) for layer in dict.fromkeys(kinds)}, first, last


def layer_costs(workload: Workload, cost: Callable[[Probe], float]) -> LayerCosts:
    """The cost of every layer and of both ends, from the cost of probes."""
    kinds = _kinds(workload)
    middles, first, last = probes(workload)
    costs = {layer: cost(probe) for layer, probe in middles.items()}
    return LayerCosts(
        layers=tuple(costs[kind] for kind in kinds),
        first=max(0.0, cost(first) - costs[kinds[first.layer]]),
        last=max(0.0, cost(last) - costs[kinds[last.layer]]),
    )


def _kinds(workload: Workload) -> list[int]:
    """For each layer the first one of the same structure that is computed again in the same way."""
    policy = find_policy(workload.config.model_type, workload.head)
    model = empty_model(workload.config, workload.head)
    blocks = list(model.get_submodule(policy.layers).children())
    attention_types = getattr(workload.config, "layer_types", None) or [""] * len(blocks)
    seen: dict[tuple[Any, ...], int] = {}
    kinds = []
    for layer, block in enumerate(blocks):
        shapes = tuple((name, tuple(p.shape)) for name, p in block.named_parameters())
        structure = (str(block), shapes, attention_types[layer], workload.recomputes(layer))
        kinds.append(seen.setdefault(structure, layer))
    return kinds


def build_stage(workload: Workload, probe: Probe, device: torch.device) -> CastStage:
    """The stage, as the first tp rank has it, without any message.

    On the meta device its weights take no memory, and nothing is computed again.
    """
    policy = find_policy(workload.config.model_type, workload.head)
    model: Any = empty_model(workload.config, workload.head)
    layers = range(probe.layer, probe.layer + 1)
    cut_stage(model, policy, layers, is_first=probe.is_first, is_last=probe.is_last)
    split_model(model, policy, tp=workload.tp, rank=0, group=None)
    fuse_activations(model)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, torch.nn.Parameter(parameter.to(workload.dtypes.weights)))
    if device.type != "meta":
        model = model.to_empty(device=device)
        attach_recomputation(model, policy, workload.recomputed, around=contextlib.nullcontext, micro_batch=lambda: 0)
    score = SCORE if workload.head == CLASSIFICATION else None
    stage = StageModule(model, is_first=probe.is_first, is_last=probe.is_last, score=score)
    return CastStage(stage.train(), workload.dtypes)


def example(workload: Workload, probe: Probe, device: torch.device) -> tuple[Tensor, Tensor]:
    """The input of one micro-batch, and labels."""
    shape = (workload.samples, workload.sequence_length)
    labels = torch.zeros(shape, dtype=torch.long, device=device)
    if probe.is_first:
        ids = torch.arange(labels.numel(), device=device).view(shape) % workload.config.vocab_size
        return ids, labels
    size = (*shape, workload.config.hidden_size)
    hidden = torch.ones(size, dtype=workload.dtypes.hidden, device=device, requires_grad=True)
    return hidden, labels


def forward(stage: CastStage, probe: Probe, x: Tensor, labels: Tensor, **inputs: Tensor) -> Tensor:
    """Hidden states, or the loss where the stage is the last."""
    output: Tensor = stage(x, **inputs)
    return StepLoss(vocabulary_start=0, group=None)(output, labels) if probe.is_last else output
