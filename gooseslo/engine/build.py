"""A run being built on one worker, in its natural order; each line leads to one room."""

from __future__ import annotations

import torch
from torch import Tensor

from gooseslo.engine.model import LocalModel, build_model
from gooseslo.engine.plan import Plan
from gooseslo.engine.step import StepLoss, TrainStep
from gooseslo.parallel.data.buffer import GradientBuffer
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.parallel.pipeline.schedule import PipelineRunner, Runner, SequentialRunner
from gooseslo.parallel.random import RandomStreams
from gooseslo.parallel.tensor.layouts import split_vocabulary
from gooseslo.policies.registry import find_policy
from gooseslo.schema.groups import TrainConfig


def build_step(
    plan: Plan, context: ParallelContext, train: TrainConfig, *, seed: int, device: torch.device
) -> TrainStep:
    """Model, gradient buffer and schedule of this rank, ready to train; collective over all ranks.

    The weights are the random initial ones of `seed`, equal whatever the layout.
    """
    streams = RandomStreams(seed, context.at.tp)
    model = build_model(
        plan.config,
        find_policy(plan.config.model_type),
        context,
        layers_per_stage=plan.layers_per_stage,
        dtype=plan.dtype,
        device=device,
        seed=seed,
        streams=streams,
    )
    buffer = GradientBuffer(list(model.parameters().values()), context.dp_group)
    vocabulary = split_vocabulary(plan.config.vocab_size, context.topology.tp, context.at.tp)[0]
    loss = StepLoss(vocabulary_start=vocabulary[0], context=context)
    shape = (train.micro_batch_size, train.sequence_length)
    runner = _build_runner(plan, context, model, loss, streams, shape=shape, vocabulary=vocabulary, device=device)
    return TrainStep(
        model=model,
        runner=runner,
        loss=loss,
        buffer=buffer,
        context=context,
        streams=streams,
        device=device,
        clip_grad_norm=train.clip_grad_norm,
    )


def _build_runner(
    plan: Plan,
    context: ParallelContext,
    model: LocalModel,
    loss: StepLoss,
    streams: RandomStreams,
    *,
    shape: tuple[int, int],
    vocabulary: tuple[int, int],
    device: torch.device,
) -> Runner:
    """The plain loop, or this stage under its schedule with the shapes that travel between stages."""
    num_micro = plan.num_micro_batches
    first_micro_batch = context.at.dp * num_micro
    if context.topology.pp == 1:
        return SequentialRunner(model.module, loss, streams, first_micro_batch=first_micro_batch, num_micro=num_micro)

    def travelling(*features: int) -> Tensor:
        return torch.empty(*shape, *features, dtype=plan.dtype, device="meta", requires_grad=True)

    ids = torch.empty(*shape, dtype=torch.long, device="meta")
    hidden = travelling(plan.config.hidden_size)
    logits = travelling(vocabulary[1] - vocabulary[0])
    example = (ids if context.is_first_stage else hidden, logits if context.is_last_stage else hidden)
    return PipelineRunner(
        model.module,
        loss,
        streams,
        first_micro_batch=first_micro_batch,
        num_micro=num_micro,
        schedule=plan.schedule,
        context=context,
        example=example,
        device=device,
    )
