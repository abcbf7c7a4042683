"""Short runs by build_trainer, as the workers do it, for tests of what a run keeps and goes on with."""

import json
from dataclasses import replace

import torch

from gooseslo.engine.build import build_trainer, by_saved_name
from gooseslo.engine.plan import make_plan
from gooseslo.engine.sources import prepare_data
from gooseslo.engine.worker import Duties, Worker
from gooseslo.schema.data_groups import SyntheticDataConfig
from gooseslo.schema.groups import AdamWConfig, LinearScheduleConfig, LoggingConfig
from gooseslo.testing.ranks import run_ranks


class StayingDuties(Duties):
    """Those of a rank whose world goes on after the run."""

    def part(self):
        pass


def trainer_of(rank, world_size, case, run_dir, start, stop_after, optimizer, **train):
    """The trainer of a run of 6 steps, and where it begins; `train`: keys of that group."""
    job = case.job()
    train = {"steps": 6, "stop_after": stop_after, "eval_batches": 0, "global_batch_size": 8, **train}
    job = replace(
        job,
        train=replace(job.train, **train),
        optimizer=optimizer,
        lr_schedule=LinearScheduleConfig(warmup_steps=2 if train["steps"] == 6 else 4),
        data=SyntheticDataConfig(samples=64),
        logging=LoggingConfig(progress=False),
    )
    plan = make_plan(job, num_devices=0)
    data = prepare_data(job.data, seed=0, model_vocab_size=96, cache_dir=run_dir, progress=lambda message: None)
    worker = Worker(
        rank=rank,
        local_rank=rank,
        world_size=world_size,
        run_dir=run_dir,
        device=torch.device("cpu"),
        console=None,
        duties=StayingDuties(rank),
    )
    return build_trainer(worker, job, plan, data, start=start)


def part_of_a_run(rank, world_size, case, run_dir, start, stop_after, optimizer):
    """(weight, stepped weight) by name after `stop_after`, from a step folder or from the beginning; saved there."""
    trainer, position = trainer_of(rank, world_size, case, run_dir, start, stop_after, optimizer)
    trainer.fit(position)
    model = trainer.train_step.model
    stepped = {part.name: part.parameter for part in by_saved_name(trainer.train_step) if part.start is None}
    weights = {
        saved: (parameter.detach().clone(), stepped.get(saved, parameter).detach().clone())
        for saved, parameter in ((model.saved_name(name), p) for name, p in model.parameters().items())
    }
    trainer.train_step.context.close()
    return weights


def run(case, run_dir, *, start=None, stop_after=6, optimizer=AdamWConfig(lr=1e-2)):  # noqa: B008
    """Its losses from `start` on, and every rank's (weight, stepped weight) by name."""
    run_dir.mkdir(exist_ok=True)
    metrics = run_dir / "metrics.jsonl"
    before = len(metrics.read_text().splitlines()) if metrics.exists() else 0
    results = run_ranks(part_of_a_run, case.world_size, case, run_dir, start, stop_after, optimizer)
    return [json.loads(line)["loss"] for line in metrics.read_text().splitlines()[before:]], results


def step_folder(run_dir, step):
    return run_dir / "checkpoints" / f"step-{step:08d}"
