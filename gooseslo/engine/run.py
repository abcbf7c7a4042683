"""`gooseslo train` in the parent: plan, data, run folder, then the workers; and what a worker does with them."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

import torch

from gooseslo.data.indexed.mixture import evaluation_warnings
from gooseslo.data.supervised.dataset import ExampleDataset
from gooseslo.engine.build import build_trainer
from gooseslo.engine.checkpoint.folders import clean_up, find_latest, passed_over, read_state
from gooseslo.engine.checkpoint.manifest import Manifest
from gooseslo.engine.display.summary import resume_command, summary
from gooseslo.engine.interrupt import Interrupted
from gooseslo.engine.launcher import LaunchSpec, launch
from gooseslo.engine.plan import Plan, make_plan
from gooseslo.engine.preflight import num_devices, splits_to_check
from gooseslo.engine.run_folder import describe_environment, open_run_folder
from gooseslo.engine.sources import IndexedData, RunData, prepare_data
from gooseslo.engine.start import check_same_data, check_same_model, find_start, is_finished, last_step
from gooseslo.engine.worker import Worker
from gooseslo.errors import ConfigError, Fault
from gooseslo.schema.dump import dump_yaml
from gooseslo.schema.groups import TrainJob


def train(
    job: TrainJob,
    *,
    composed: TrainJob | None = None,
    overrides: list[str],
    cache_dir: Path,
    console: TextIO = sys.stdout,
    launch: Callable[..., None] = launch,
    command: Sequence[str] = ("gooseslo", "train"),
) -> int:
    """Run the job to its end and say where it stands; the exit code.

    The job has passed `preflight`; what else is wrong with it is raised before the run folder is made. `launch`
    brings the workers to their work; for ranks that were started already, `composed` is the job as the user gave it,
    before their number settled its size, and `command` what starts them; empty where nobody knows.
    """
    torch.set_num_threads(1)  # a parent that computed with several threads cannot fork
    plan = make_plan(job, num_devices=num_devices(job), cache_dir=cache_dir)
    start = find_start(job)
    if start is not None:
        check_same_model(start, plan.shapes)
        if is_finished(job, start):
            console.write(f"{start.parent.parent}: finished already, at step {last_step(job)}; nothing to do\n")
            return 0
    data = _prepare(job, plan, start, cache_dir=cache_dir, console=console)
    plan = plan.fitted_to(end_of_text=data.eos_token_id, padding=data.pad_token_id, label_names=data.label_names)

    now = datetime.datetime.now()
    folder = open_run_folder(name=job.run.name, directory=job.run.dir, model_name=job.model.name or "model", now=now)

    def go_on() -> str:
        return resume_command(job, folder.path, overrides, command=command)

    try:
        if find_start(job) != start:
            raise ConfigError(Fault(key="run.name", value=folder.path.name, rule="another run of this name went on"))
        folder.describe(
            config_yaml=dump_yaml(composed or job),
            overrides=overrides,
            plan=str(plan),
            environment=describe_environment(sys.argv, now),
        )
        _say(console, job, f"{folder.path}\n{plan}\n{_beginning(job, start)}")
        launch(_launch_spec(job, plan, folder.path), train_worker, job, plan, data, start)
    except Interrupted as error:
        clean_up(folder.checkpoints)
        error.say(_how_to_go_on(folder.path, go_on(), saved=error.stopped))
        raise
    finally:
        folder.close()
    if job.logging.progress:
        seconds = (datetime.datetime.now() - now).total_seconds()
        reached = find_latest(folder.path)
        is_over = reached is not None and int(read_state(reached)["step"]) >= job.train.steps
        console.write(summary(folder.path, resume=None if is_over else go_on(), seconds=seconds))
    return 0


def _beginning(job: TrainJob, start: Path | None) -> str:
    """What the run trains on, and from where."""
    if start is None:
        return f"data {job.data.name}, from random weights"
    saved = Manifest.read(start).topology
    layout = " ".join(f"{axis}={saved[axis]}" for axis in ("tp", "pp", "dp") if axis in saved)
    warning = passed_over(start)
    return f"data {job.data.name}, going on from {start} (saved at {layout})" + (
        f"\nwarning: {warning}" if warning else ""
    )


def _prepare(job: TrainJob, plan: Plan, start: Path | None, *, cache_dir: Path, console: TextIO) -> RunData:
    """The run's data, with every split long enough, and the same as before where the run goes on from `start`."""
    data = prepare_data(
        job.data,
        seed=job.run.seed,
        model_vocab_size=plan.config.vocab_size,
        cache_dir=cache_dir,
        progress=lambda message: _say(console, job, message),
    )
    for split in splits_to_check(job, data.splits):
        dataset = data.dataset(split, job.train.sequence_length)
        if isinstance(dataset, ExampleDataset) and dataset.num_cut:
            how_many = f"{dataset.num_cut} of its {dataset.num_examples} examples"
            _say(console, job, f"warning: data.{split}: {how_many} are cut to train.sequence_length tokens")
        if split == "valid" and isinstance(data.source, IndexedData):
            at_most = job.train.eval_batches * job.train.global_batch_size
            for warning in evaluation_warnings(data.source.splits[split], dataset, at_most=at_most):
                _say(console, job, f"warning: {warning}")
    if start is not None:
        check_same_data(start, data.identity)
    return data


def _launch_spec(job: TrainJob, plan: Plan, run_dir: Path) -> LaunchSpec:
    num_workers = plan.topology.world_size
    return LaunchSpec(
        num_workers=num_workers,
        run_dir=run_dir,
        device="cuda" if plan.device == "cuda" else "cpu",
        timeout_seconds=job.launcher.timeout_seconds,
        shutdown_seconds=job.launcher.shutdown_seconds,
        coordinates=tuple(str(plan.topology.coordinates(rank)) for rank in range(num_workers)),
        deterministic=job.train.deterministic,
    )


def _how_to_go_on(run_dir: Path, resume: str, *, saved: bool) -> str:
    """Where the run stands, and the command that continues it."""
    latest = find_latest(run_dir)
    step = latest and read_state(latest)["step"]
    done = f": saved step {step}" if saved else ""
    where = "" if saved else f" (newest checkpoint: step {step})" if latest else " (no checkpoint yet)"
    return f"{done}\nrun folder: {run_dir}{where}\nresume: {resume}"


def train_worker(worker: Worker, job: TrainJob, plan: Plan, data: RunData, start: Path | None) -> None:
    """One rank's run, from `start` (a step folder) or from random weights; collective over all workers."""
    trainer, position = build_trainer(worker, job, plan, data, start=start)
    worker.begin_training()
    trainer.fit(position)


def _say(console: TextIO, job: TrainJob, message: str) -> None:
    if job.logging.progress:
        console.write(f"{message}\n")
        console.flush()
