"""A run being built on one worker, in its natural order; each line leads to one room."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor

from gooseslo.data.order.loader import EvalLoader, TrainLoader
from gooseslo.data.order.order import training_order
from gooseslo.engine.callbacks import load_callbacks
from gooseslo.engine.checkpoint.folders import Retention, read_state
from gooseslo.engine.checkpoint.load import load_tensors, load_weights
from gooseslo.engine.checkpoint.manifest import MASTER
from gooseslo.engine.checkpoint.parts import PartTable
from gooseslo.engine.checkpoint.save import LocalState, save_step
from gooseslo.engine.data_parallel import build_data_parallel, called_for
from gooseslo.engine.hf import write_model_files
from gooseslo.engine.loop import LoopSettings, Observer, Position, Trainer
from gooseslo.engine.loss_scale import LossScale
from gooseslo.engine.lr_schedule import build_lr_schedule
from gooseslo.engine.metrics import describer, warning_record
from gooseslo.engine.model import build_model
from gooseslo.engine.observers import build_observers
from gooseslo.engine.optimizer import build_optimizer, make_state, optimizer_tensors
from gooseslo.engine.plan import Plan
from gooseslo.engine.precision import CastStage
from gooseslo.engine.requests import Requests
from gooseslo.engine.run_folder import CHECKPOINTS
from gooseslo.engine.sources import RunData
from gooseslo.engine.start import last_step
from gooseslo.engine.step import StepLoss, TrainStep
from gooseslo.engine.sync_check import SyncCheck
from gooseslo.engine.trace import ChromeTrace
from gooseslo.engine.worker import Worker
from gooseslo.parallel.data.strategy import Part
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.parallel.pipeline.callbacks import Callbacks, PipelineCallback
from gooseslo.parallel.pipeline.schedule import PipelineRunner, RankStage, Runner, SequentialRunner
from gooseslo.parallel.pipeline.stopwatch import Stopwatch
from gooseslo.parallel.pipeline.work import RankWork
from gooseslo.parallel.random import RandomStreams
from gooseslo.parallel.tensor.layouts import split_vocabulary
from gooseslo.policies.registry import CLASSIFICATION, find_policy
from gooseslo.schema.groups import TrainConfig, TrainJob, ZeroConfig

NOTHING_SHARED = ZeroConfig()


def build_trainer(
    worker: Worker, job: TrainJob, plan: Plan, data: RunData, *, start: Path | None
) -> tuple[Trainer, Position]:
    """Everything of one rank's run, and where it begins: at `start`, a step folder, or at random weights.

    Collective over all ranks.
    """
    timeout = timedelta(seconds=job.launcher.timeout_seconds)
    context = ParallelContext(plan.topology, worker.rank, timeout=timeout)
    train_loader, eval_loader = build_loaders(job, data, context)
    callbacks = load_callbacks(job.parallel.callbacks)
    if job.logging.trace:
        callbacks.append(ChromeTrace(worker.run_dir, rank=worker.rank, at=context.at, device=worker.device))
    seed, device = job.run.seed, worker.device
    train_step = build_step(
        plan,
        context,
        job.train,
        seed=seed,
        device=device,
        zero=job.zero,
        callbacks=callbacks,
        check_sync=job.debug.check_sync,
    )
    optimizer = build_optimizer(job.optimizer, by_saved_name(train_step))
    lr_at = build_lr_schedule(job.lr_schedule, peak=job.optimizer.lr, horizon=job.train.steps)
    position = Position() if start is None else resume(start, train_step, optimizer)
    observers = build_observers(worker, job, first_step=position.step + 1)
    trainer = Trainer(
        train_step=train_step,
        optimizer=optimizer,
        lr_at=lr_at,
        train_loader=train_loader,
        eval_loader=eval_loader,
        settings=LoopSettings(
            last_step=last_step(job),
            eval_every=job.train.eval_every,
            save_every=job.checkpoint.every,
            save_at_end=job.checkpoint.final or job.train.stop_after is not None,
            max_skipped_steps=job.train.max_skipped_steps,
        ),
        save=build_saver(worker, job, plan, data, train_step, optimizer, observers),
        describe=describer(plan, sequence_length=job.train.sequence_length),
        observers=observers,
        requests=Requests(signal_number=worker.signal_number, run_dir=worker.run_dir if worker.rank == 0 else None),
        part=worker.end_training,
    )
    return trainer, position


def build_loaders(job: TrainJob, data: RunData, context: ParallelContext) -> tuple[TrainLoader, EvalLoader | None]:
    """This data-parallel rank's training batches, and its part of the held-out split where there is one."""
    train, topology = job.train, context.topology
    dataset = data.dataset("train", train.sequence_length)
    train_loader = TrainLoader(
        dataset,
        training_order(dataset, seed=job.run.seed),
        global_batch_size=train.global_batch_size,
        micro_batch_size=train.micro_batch_size,
        dp_rank=context.at.dp,
        dp_size=topology.dp,
        workers=job.data.workers,
        end=last_step(job) * train.global_batch_size,
    )
    if "valid" not in data.splits or train.eval_batches == 0:
        return train_loader, None
    eval_loader = EvalLoader(
        data.dataset("valid", train.sequence_length),
        eval_batches=train.eval_batches,
        global_batch_size=train.global_batch_size,
        dp_rank=context.at.dp,
        dp_size=topology.dp,
    )
    return train_loader, eval_loader


def by_saved_name(step: TrainStep) -> list[Part]:
    """What the optimizer steps, by the names that a checkpoint has: a weight tied over two stages has its owner's."""
    return [replace(part, name=step.model.saved_name(part.name)) for part in step.data_parallel.stepped]


def resume(start: Path, step: TrainStep, optimizer: torch.optim.Optimizer) -> Position:
    """Fill weights and optimizer from a step folder, of any layout and precision; each rank reads its own slices."""
    stepped, weights, state = step.data_parallel.stepped, *(PartTable(step.model.placements) for _ in range(2))
    saved = read_state(start)
    position = Position(**saved["position"])
    step.loss_scale.load(saved.get("loss_scale"))
    make_state(optimizer, updates=position.updates)
    for part in stepped:
        weights.add(part, part.parameter.detach())
    load_weights(start, weights.tensors)
    step.data_parallel.write_back()
    for what, part, tensor in optimizer_tensors(optimizer, stepped):
        state.add(part, tensor, what=what)
    load_tensors(start, state.tensors, optimizer=True)
    return position


def build_saver(
    worker: Worker,
    job: TrainJob,
    plan: Plan,
    data: RunData,
    step: TrainStep,
    optimizer: torch.optim.Optimizer,
    observers: list[Observer],
) -> Callable[[Position], Path]:
    """The function that writes a step folder; collective over all ranks."""
    model, replicas = step.model, step.data_parallel

    def save(position: Position) -> Path:
        weights, kept = PartTable(model.placements), PartTable(model.placements)
        for part in replicas.weights:
            weights.add(part, part.parameter.detach())
        for what, part, tensor in optimizer_tensors(optimizer, replicas.stepped):
            kept.add(part, tensor, what=what)
        if replicas.are_masters:
            for part in replicas.stepped:
                kept.add(part, part.parameter.detach(), what=MASTER)

        def warn(text: str) -> None:
            logging.getLogger(__name__).warning(text)
            for observer in observers:
                observer(warning_record(text))

        return save_step(
            worker.run_dir / CHECKPOINTS,
            position.step,
            local=LocalState(tensors=weights.tensors, optimizer=kept.tensors),
            coordinates=step.context.at,
            topology=asdict(plan.topology),
            state={
                "step": position.step,
                "position": asdict(position),
                "loss_scale": step.loss_scale.state(),
                "seed": job.run.seed,
                "data": data.identity,
            },
            tied=model.aliases,
            write_common=lambda folder: write_model_files(
                folder, plan.config, data.tokenizer_folder, dtype=plan.dtypes.weights, head=plan.head
            ),
            retention=Retention(keep=job.checkpoint.keep, keep_every=job.checkpoint.keep_every),
            warn=warn,
        )

    return save


def build_step(
    plan: Plan,
    context: ParallelContext,
    train: TrainConfig,
    *,
    seed: int,
    device: torch.device,
    zero: ZeroConfig = NOTHING_SHARED,
    callbacks: Sequence[PipelineCallback] = (),
    check_sync: bool = False,
) -> TrainStep:
    """Model, gradient buffer and schedule of this rank, ready to train; collective over all ranks.

    The weights are the random initial ones of `seed`, equal whatever the layout.
    """
    streams, told = RandomStreams(seed, context.at.tp), Callbacks(callbacks)
    num_micro = plan.num_micro_batches
    work = RankWork(streams, Stopwatch(device), told, first_micro_batch=context.at.dp * num_micro, num_micro=num_micro)
    policy = find_policy(plan.config.model_type, plan.head)
    model = build_model(
        plan.config,
        policy,
        context,
        head=plan.head,
        layers_per_stage=plan.layers_per_stage,
        placement=plan.placement,
        dtype=plan.dtypes.stepped,
        device=device,
        seed=seed,
        streams=streams,
        sequence_parallel=plan.sequence_parallel,
        recomputed=train.activation_checkpointing,
        callbacks=told,
    )
    data_parallel = build_data_parallel(model, context, zero, work, dtype=plan.dtypes.weights, layers=policy.layers)
    if zero.stage < 2:  # sharded weights are gathered for the backward pass alone
        work.recompute_ahead = functools.partial(model.recompute_ahead, train.recompute_ahead)
    loss, outputs = _step_loss(plan, context)
    shape = (train.micro_batch_size, train.sequence_length)
    called = called_for(data_parallel)
    stages = {number: CastStage(stage, plan.dtypes, called=called) for number, stage in model.stages.items()}
    runner = _build_runner(plan, context, stages, loss, work, shape=shape, outputs=outputs, device=device)
    return TrainStep(
        model=model,
        data_parallel=data_parallel,
        runner=runner,
        loss=loss,
        context=context,
        streams=streams,
        callbacks=told,
        device=device,
        clip_grad_norm=train.clip_grad_norm,
        loss_scale=LossScale.of(plan.precision, train.loss_scale),
        sync_check=SyncCheck(context.topology) if check_sync else None,
    )


def _step_loss(plan: Plan, context: ParallelContext) -> tuple[StepLoss, tuple[int, int]]:
    """The loss, and the first and the end of the columns of the logits that this rank has."""
    if plan.head == CLASSIFICATION:
        outputs, group = (0, int(plan.config.num_labels or 0)), None
    else:
        outputs = split_vocabulary(plan.config.vocab_size, context.topology.tp, context.at.tp)[0]
        group = context.tp_group
    return StepLoss(vocabulary_start=outputs[0], group=group, counts_correct=plan.head == CLASSIFICATION), outputs


def _build_runner(
    plan: Plan,
    context: ParallelContext,
    stages: dict[int, CastStage],
    loss: StepLoss,
    work: RankWork,
    *,
    shape: tuple[int, int],
    outputs: tuple[int, int],
    device: torch.device,
) -> Runner:
    """The plain loop, or this rank's stages under their schedule with the shapes that travel between stages."""
    num_micro = plan.num_micro_batches
    if context.topology.pp == 1:
        (stage,) = stages.values()
        return SequentialRunner(stage, loss, work, num_micro=num_micro)

    def travelling(*size: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(size, dtype=dtype, device="meta", requires_grad=True)

    samples, length = shape
    shard = length // context.topology.tp if plan.sequence_parallel else length
    ids = torch.empty(samples, length, dtype=torch.long, device="meta")
    hidden = travelling(samples, shard, plan.config.hidden_size, dtype=plan.dtypes.hidden)
    logits = travelling(samples, length, outputs[1] - outputs[0], dtype=plan.dtypes.logits)
    last = plan.placement.num_stages - 1
    rank_stages = [
        RankStage(
            number=number,
            module=stage,
            example=(ids if number == 0 else hidden, logits if number == last else hidden),
        )
        for number, stage in stages.items()
    ]
    return PipelineRunner(
        rank_stages,
        loss,
        work,
        num_micro=num_micro,
        schedule=plan.schedule,
        table=plan.table,
        num_stages=plan.placement.num_stages,
        micro_shape=shape,
        context=context,
        device=device,
    )
