"""`gooseslo train` in the parent: plan, data, run folder, then the workers; and what a worker does with them."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import TextIO

import torch
import yaml

from gooseslo.engine.build import build_trainer
from gooseslo.engine.checkpoint.folders import find_latest, read_state
from gooseslo.engine.launcher import LaunchSpec, launch
from gooseslo.engine.plan import Plan, make_plan
from gooseslo.engine.report import summary
from gooseslo.engine.run_folder import describe_environment, open_run_folder
from gooseslo.engine.sources import RunData, prepare_data
from gooseslo.engine.worker import Worker
from gooseslo.errors import ConfigError, Fault
from gooseslo.schema.dump import dump_yaml
from gooseslo.schema.groups import TrainJob
from gooseslo.schema.resume import check_resume


def train(job: TrainJob, *, overrides: list[str], cache_dir: Path, console: TextIO = sys.stdout) -> int:
    """Run the job to its end and say where it stands; the exit code.

    Everything that is wrong with the job is raised before the run folder is made.
    """
    torch.set_num_threads(1)  # a parent that computed with several threads cannot fork
    num_devices = 0 if job.device == "cpu" else torch.cuda.device_count()
    plan = make_plan(job, num_devices=num_devices)
    start = _find_start(job)
    if start is not None and _is_finished(job, start):
        console.write(f"{start.parent.parent}: finished already, at step {job.train.steps}; nothing to do\n")
        return 0
    data = prepare_data(
        job.data,
        seed=job.run.seed,
        model_vocab_size=plan.config.vocab_size,
        cache_dir=cache_dir,
        progress=lambda message: _say(console, job, message),
    )
    for split in data.splits:
        data.dataset(split, job.train.sequence_length)
    plan = plan.with_end_of_text(data.eos_token_id)

    now = datetime.datetime.now()
    folder = open_run_folder(name=job.run.name, directory=job.run.dir, model_name=job.model.name or "model", now=now)
    try:
        folder.describe(
            config_yaml=dump_yaml(job),
            overrides=overrides,
            plan=str(plan),
            environment=describe_environment(sys.argv, now),
        )
        _say(console, job, f"{folder.path}\n{plan}")
        spec = LaunchSpec(
            num_workers=plan.topology.world_size,
            run_dir=folder.path,
            device="cuda" if plan.device == "cuda" else "cpu",
            timeout_seconds=job.launcher.timeout_seconds,
            shutdown_seconds=job.launcher.shutdown_seconds,
            coordinates=tuple(str(plan.topology.coordinates(rank)) for rank in range(plan.topology.world_size)),
        )
        launch(spec, train_worker, job, plan, data, start)
    finally:
        folder.close()
    if job.logging.progress:
        console.write(summary(folder.path))
    return 0


def train_worker(worker: Worker, job: TrainJob, plan: Plan, data: RunData, start: Path | None) -> None:
    """One rank's run, from `start` (a step folder) or from random weights; collective over all workers."""
    trainer, position = build_trainer(worker, job, plan, data, start=start)
    trainer.fit(position)


def _say(console: TextIO, job: TrainJob, message: str) -> None:
    if job.logging.progress:
        console.write(f"{message}\n")
        console.flush()


def _find_start(job: TrainJob) -> Path | None:
    """The step folder that the run goes on from; ConfigError where it cannot go on as the job asks."""
    resume = job.checkpoint.resume
    if resume not in ("auto", "never"):
        _check_same_run(Path(resume).parent.parent, job)
        return Path(resume)
    run_dir = Path(job.run.dir) if job.run.dir else Path("runs") / job.run.name if job.run.name else None
    if run_dir is None or not run_dir.is_dir():
        return None
    latest = find_latest(run_dir)
    if latest is not None and resume == "never":
        rule = f"{run_dir} holds checkpoints of an earlier run, which would be lost"
        raise ConfigError(
            Fault(key="checkpoint.resume", value="never", rule=rule, way_out="start another run with run.name=NAME")
        )
    if latest is not None:
        _check_same_run(run_dir, job)
    return latest


def _check_same_run(run_dir: Path, job: TrainJob) -> None:
    """Refuse to go on with other data, seed, batch, model or schedule than the run's own."""
    config = run_dir / "config.yaml"
    if config.is_file():
        faults = check_resume(yaml.safe_load(config.read_text(encoding="utf-8")), job)
        if faults:
            raise ConfigError(faults)


def _is_finished(job: TrainJob, start: Path) -> bool:
    return int(read_state(start)["step"]) >= job.train.steps
