"""A rank's part of a stock model: cut to its stages, split by policy, materialised alone, and filled."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig

from gooseslo.engine.hf import empty_model
from gooseslo.engine.weights import draw_weights, fill_buffers, plan_draws
from gooseslo.kernels.activation import fuse_activations
from gooseslo.parallel.lint import lint
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.parallel.names import matches
from gooseslo.parallel.pipeline.callbacks import Callbacks
from gooseslo.parallel.pipeline.partition import layer_ranges
from gooseslo.parallel.pipeline.placement import StagePlacement
from gooseslo.parallel.pipeline.stage import StageModule, cut_stage
from gooseslo.parallel.random import RandomStreams
from gooseslo.parallel.recompute import Around, attach_recomputation
from gooseslo.parallel.shared import SharedGradients
from gooseslo.parallel.tensor.apply import split_model
from gooseslo.parallel.tensor.layouts import Placement
from gooseslo.parallel.tensor.sequence import SequenceShards
from gooseslo.policies.policy import SCORE, Policy
from gooseslo.policies.registry import CAUSAL_LM, CLASSIFICATION


@dataclass(frozen=True, kw_only=True)
class LocalModel:
    """What one rank holds of the model, under the Hugging Face names: one stage of the pipeline, or several."""

    config: PretrainedConfig
    stages: dict[int, StageModule]
    """By number, ascending."""
    placements: dict[str, Placement]
    """Every local parameter's boxes in the full tensor, tied aliases included."""
    tied_ends: SharedGradients
    """Weights tied over the two ends of the pipeline, where these are on two ranks."""
    partial: tuple[SharedGradients, ...]
    """Other parameters of which several ranks hold a copy and each sees a part of the gradient."""
    aliases: dict[str, str]
    """Of the whole model: tied name -> the name it is saved under."""
    counted: frozenset[str] = field(default_factory=frozenset)
    """Parameters that this rank counts in the gradient norm and writes: each of the model on one rank of a dp group."""

    @property
    def module(self) -> StageModule:
        """The stage of a rank that has one."""
        (stage,) = self.stages.values()
        return stage

    def train(self, mode: bool = True) -> None:
        """As of any module, for all stages."""
        for stage in self.stages.values():
            stage.train(mode)

    def recompute_ahead(self, parts: int, stage: int, micro_batch: int) -> None:
        """Compute so many parts of a stage again whose gradients are on their way; collective over the tp group."""
        recomputation = self.stages[stage].recomputation
        if recomputation is not None:
            recomputation.ahead(micro_batch, parts=parts)

    def parameters(self) -> dict[str, nn.Parameter]:
        """The local parameters by name, a tied one once."""
        return local_parameters(stage.model for stage in self.stages.values())

    @property
    def shared(self) -> tuple[SharedGradients, ...]:
        """What other ranks hold copies of, in the order in which their gradients are to be summed."""
        return (*self.partial, self.tied_ends)

    def saved_name(self, name: str) -> str:
        """The name under which a checkpoint has the parameter."""
        return self.aliases.get(name, name)


def local_parameters(models: Iterable[nn.Module]) -> dict[str, nn.Parameter]:
    """Those of a rank's stages by name, one that several names or stages share under its first."""
    found: dict[str, nn.Parameter] = {}
    seen: set[nn.Parameter] = set()
    for model in models:
        for name, parameter in model.named_parameters():
            if parameter not in seen:
                seen.add(parameter)
                found[name] = parameter
    return found


def build_model(
    config: PretrainedConfig,
    policy: Policy,
    context: ParallelContext,
    *,
    head: str = CAUSAL_LM,
    layers_per_stage: list[int],
    placement: StagePlacement | None = None,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
    streams: RandomStreams,
    sequence_parallel: bool = False,
    recomputed: str | int = "none",
    callbacks: Callbacks | None = None,
) -> LocalModel:
    """Build this rank's stages with random initial weights, equal over all layouts.

    `placement` None: one stage a rank; `recomputed`: as `attach_recomputation` has it. Collective over all ranks:
    groups for shared key-value heads may be made.
    """
    placement = placement or StagePlacement(pp=context.topology.pp)
    told = Callbacks() if callbacks is None else callbacks
    aliases = dict(policy.tied) if config.tie_word_embeddings else {}
    stages: dict[int, StageModule] = {}
    placements: dict[str, Placement] = {}
    for number in placement.stages_of(context.at.pp):
        stages[number], found = _build_stage(
            config,
            policy,
            context,
            head=head,
            layers=layer_ranges(layers_per_stage)[number],
            is_first=number == 0,
            is_last=number == placement.num_stages - 1,
            dtype=dtype,
            device=device,
            seed=seed,
            streams=streams,
            sequence_parallel=sequence_parallel,
            recomputed=recomputed,
            around_recompute=functools.partial(_around_recompute, told, streams, number),
        )
        placements |= found
    models = [stage.model for stage in stages.values()]
    _tie(models, aliases)
    parameters = local_parameters(models)
    return LocalModel(
        config=config,
        stages=stages,
        placements=placements,
        tied_ends=_tied_ends(models, aliases, context, placement),
        partial=_partial_gradients(parameters, policy, placements, context, sequence_parallel=sequence_parallel),
        aliases=aliases,
        counted=_counted(parameters, placements, aliases, context),
    )


def _build_stage(
    config: PretrainedConfig,
    policy: Policy,
    context: ParallelContext,
    *,
    head: str,
    layers: range,
    is_first: bool,
    is_last: bool,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
    streams: RandomStreams,
    sequence_parallel: bool,
    recomputed: str | int,
    around_recompute: Around,
) -> tuple[StageModule, dict[str, Placement]]:
    """One stage, cut from a stock model of its own, and its parameters' boxes."""
    model: Any = empty_model(config, head)
    tied = bool(config.tie_word_embeddings)
    lint(model, policy, tied=tied)

    draws = plan_draws(model, policy, layers, is_first=is_first, is_last=is_last)
    cut_stage(model, policy, layers, is_first=is_first, is_last=is_last)
    placements = split_model(
        model,
        policy,
        tp=context.topology.tp,
        rank=context.at.tp,
        group=context.tp_group,
        sequence_parallel=sequence_parallel,
    )
    fuse_activations(model)
    _cast_parameters(model, dtype)
    model = model.to_empty(device=device)
    _tie([model], dict(policy.tied) if tied else {})
    draw_weights(model, draws, placements, seed=seed)
    fill_buffers(model, policy)
    _attach_streams(model, policy, streams, shards=sequence_parallel)
    recomputation = attach_recomputation(
        model, policy, recomputed, around=around_recompute, micro_batch=lambda: streams.micro_batch
    )

    score = SCORE if head == CLASSIFICATION else None
    shards = None
    if sequence_parallel and context.tp_group is not None:
        blocks = list(model.get_submodule(policy.layers).children())
        shards = SequenceShards(blocks[0], blocks[-1], group=context.tp_group, is_first=is_first, is_last=is_last)
    stage = StageModule(
        model, is_first=is_first, is_last=is_last, shards=shards, score=score, recomputation=recomputation
    )
    return stage, placements


def _around_recompute(
    callbacks: Callbacks, streams: RandomStreams, stage: int
) -> contextlib.AbstractContextManager[None]:
    return callbacks.around("recompute", streams.micro_batch, stage)


def _tie(models: Sequence[nn.Module], aliases: dict[str, str]) -> None:
    """Make tied names one Parameter, also of two stages of a rank: moving off the meta device gives each its own."""
    local = {name: p for model in models for name, p in model.named_parameters(remove_duplicate=False)}
    for alias, owner in aliases.items():
        if alias in local and owner in local:
            path, _, key = alias.rpartition(".")
            for model in models:
                if alias in dict(model.named_parameters(remove_duplicate=False)):
                    setattr(model.get_submodule(path), key, local[owner])


def _cast_parameters(model: nn.Module, dtype: torch.dtype) -> None:
    """Give the parameters their dtype, on the meta device; buffers keep theirs: bf16 would spoil rotary frequencies."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(parameter.to(dtype), requires_grad=parameter.requires_grad))


def _attach_streams(model: Any, policy: Policy, streams: RandomStreams, *, shards: bool) -> None:
    """Seed every dropout by its place; a model without dropout pays nothing.

    On sequence shards each tp rank drops parts of its own, so the masks differ between them.
    """
    drops = any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
    if not drops and not getattr(model.config, "attention_dropout", 0):  # Llama's is a number, no module
        return
    for patterns, split in ((policy.replicated_dropout, False), (policy.split_dropout, True)):
        for name, module in model.named_modules():
            if any(matches(pattern, name) for pattern in patterns):
                on_shard = shards and name.startswith(f"{policy.layers}.")
                streams.attach(module, name, split=split or on_shard)


def _partial_gradients(
    parameters: dict[str, nn.Parameter],
    policy: Policy,
    placements: dict[str, Placement],
    context: ParallelContext,
    *,
    sequence_parallel: bool,
) -> tuple[SharedGradients, ...]:
    """What tp ranks hold copies of and each sees a part of the gradient of; collective over all ranks.

    Key-value heads that several ranks hold for their own query heads; under sequence parallelism the blocks' whole
    parameters, norms and biases, each of which a rank applied to its shard.
    """
    if context.tp_group is None:
        return ()
    found = []
    copies = max(placement.copies for placement in placements.values())
    if copies > 1:
        heads = {name: p for name, p in parameters.items() if placements[name].copies > 1}
        found.append(SharedGradients(parameters=heads, group=context.neighbours_group(copies)))
    if sequence_parallel:
        inside = {
            name: p
            for name, p in parameters.items()
            if placements[name].dim is None and name.startswith(f"{policy.layers}.")
        }
        found.append(SharedGradients(parameters=inside, group=context.tp_group))
    return tuple(found)


def _tied_ends(
    models: Sequence[nn.Module], aliases: dict[str, str], context: ParallelContext, placement: StagePlacement
) -> SharedGradients:
    """The local copy of each weight tied over the two ends, by its owner's name, where the ends are on two ranks."""
    ends = (placement.rank_of(0), placement.rank_of(placement.num_stages - 1))
    if not placement.parts_ends or context.at.pp not in ends:
        return SharedGradients(parameters={}, group=None)
    local = {name: p for model in models for name, p in model.named_parameters(remove_duplicate=False)}
    is_last = context.at.pp == ends[1]
    copies = {owner: local[alias if is_last else owner] for alias, owner in aliases.items()}
    return SharedGradients(parameters=copies, group=context.ends_group)


def _counted(
    parameters: dict[str, nn.Parameter],
    placements: dict[str, Placement],
    aliases: dict[str, str],
    context: ParallelContext,
) -> frozenset[str]:
    """Parameters of which this rank has the first copy of its tp group; tied ones where the owner is."""

    def is_first_copy(placement: Placement) -> bool:
        copies = context.topology.tp if placement.dim is None else placement.copies
        return context.at.tp % copies == 0

    return frozenset(name for name in parameters if name not in aliases and is_first_copy(placements[name]))
