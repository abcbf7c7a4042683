"""A rank's part of a stock model: cut to its stage, split by policy, materialised alone, and filled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig

from gooseslo.engine.hf import empty_model
from gooseslo.engine.weights import draw_weights, plan_draws
from gooseslo.parallel.lint import lint
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.parallel.names import matches
from gooseslo.parallel.pipeline.partition import layer_ranges
from gooseslo.parallel.pipeline.stage import StageModule, cut_stage
from gooseslo.parallel.pipeline.ties import TiedEnds
from gooseslo.parallel.random import RandomStreams
from gooseslo.parallel.tensor.apply import split_model
from gooseslo.parallel.tensor.layouts import Placement
from gooseslo.policies.policy import Policy


@dataclass(frozen=True, kw_only=True)
class LocalModel:
    """What one rank holds of the model, under the Hugging Face names."""

    config: PretrainedConfig
    module: StageModule
    placements: dict[str, Placement]
    """Every local parameter's boxes in the full tensor, tied aliases included."""
    tied_ends: TiedEnds
    aliases: dict[str, str]
    """Of the whole model: tied name -> the name it is saved under."""
    counted: frozenset[str] = field(default_factory=frozenset)
    """Parameters that this rank counts in the gradient norm and writes: each of the model on one rank of a dp group."""

    def parameters(self) -> dict[str, nn.Parameter]:
        """The local parameters by name, a tied one once."""
        return dict(self.module.model.named_parameters())

    def saved_name(self, name: str) -> str:
        """The name under which a checkpoint has the parameter."""
        return self.aliases.get(name, name)


def build_model(
    config: PretrainedConfig,
    policy: Policy,
    context: ParallelContext,
    *,
    layers_per_stage: list[int],
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
    streams: RandomStreams,
) -> LocalModel:
    """Build this rank's stage with random initial weights, equal over all layouts. Not collective."""
    is_first, is_last = context.is_first_stage, context.is_last_stage
    layers = layer_ranges(layers_per_stage)[context.at.pp]
    model: Any = empty_model(config)
    tied = bool(config.tie_word_embeddings)
    lint(model, policy, tied=tied)

    draws = plan_draws(model, policy, layers, is_first=is_first, is_last=is_last)
    cut_stage(model, policy, layers, is_first=is_first, is_last=is_last)
    placements = split_model(model, policy, tp=context.topology.tp, rank=context.at.tp, group=context.tp_group)
    model = model.to(dtype).to_empty(device=device)
    aliases = dict(policy.tied) if tied else {}
    _retie(model, aliases)
    draw_weights(model, draws, placements, seed=seed)
    _attach_streams(model, policy, streams)

    copies = _copies_of_other_end(model, aliases, context)
    return LocalModel(
        config=config,
        module=StageModule(model, is_first=is_first, is_last=is_last),
        placements=placements,
        tied_ends=TiedEnds(parameters=copies, group=context.ends_group),
        aliases=aliases,
        counted=_counted(model, placements, aliases, context),
    )


def _retie(model: nn.Module, aliases: dict[str, str]) -> None:
    """Make tied names one Parameter again: moving a model off the meta device gives each its own."""
    local = dict(model.named_parameters(remove_duplicate=False))
    for alias, owner in aliases.items():
        if alias in local and owner in local:
            module, _, key = alias.rpartition(".")
            setattr(model.get_submodule(module), key, local[owner])


def _attach_streams(model: nn.Module, policy: Policy, streams: RandomStreams) -> None:
    """Seed every dropout by its place; a model without dropout pays nothing."""
    drops = any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
    if not drops:
        return
    for patterns, split in ((policy.replicated_dropout, False), (policy.split_dropout, True)):
        for name, module in model.named_modules():
            if any(matches(pattern, name) for pattern in patterns):
                streams.attach(module, name, split=split)


def _copies_of_other_end(
    model: nn.Module, aliases: dict[str, str], context: ParallelContext
) -> dict[str, nn.Parameter]:
    """The local copy of each weight tied over the two ends of the pipeline, by its owner's name."""
    if context.topology.pp == 1 or not (context.is_first_stage or context.is_last_stage):
        return {}
    local = dict(model.named_parameters(remove_duplicate=False))
    return {owner: local[alias if context.is_last_stage else owner] for alias, owner in aliases.items()}


def _counted(
    model: nn.Module, placements: dict[str, Placement], aliases: dict[str, str], context: ParallelContext
) -> frozenset[str]:
    """Split parameters on every tp rank, whole ones on the first alone, tied ones where the owner is."""
    return frozenset(
        name
        for name, _ in model.named_parameters()
        if name not in aliases and (placements[name].dim is not None or context.at.tp == 0)
    )
