"""What is wrong with a training job beside its own values: devices, files, the run folder and its checkpoint.

Imports no model class, so that the answer comes within seconds, before anything is prepared or made.
"""

from __future__ import annotations

from pathlib import Path

import torch
import yaml

from gooseslo.data.text_files import TextCorpus
from gooseslo.engine.checkpoint.folders import find_latest, read_state
from gooseslo.engine.checkpoint.manifest import Manifest
from gooseslo.engine.run_folder import check_run_folder
from gooseslo.errors import CheckpointError, ConfigError, Fault
from gooseslo.schema.checks import check_train
from gooseslo.schema.groups import TextDataConfig, TrainJob
from gooseslo.schema.resume import check_resume


def preflight(job: TrainJob) -> None:
    """Raise ConfigError, DataError or CheckpointError for all that this machine's files and devices can show."""
    if faults := check_train(job, num_devices=num_devices(job)):
        raise ConfigError(faults)
    if isinstance(job.data, TextDataConfig):
        data = job.data
        TextCorpus(train=data.train, valid=data.valid, test=data.test, text_key=data.text_key, base_dir=Path.cwd())
    check_run_folder(name=job.run.name, directory=job.run.dir)
    find_start(job)


def num_devices(job: TrainJob) -> int:
    """CUDA devices to train on; 0 for the CPU."""
    return 0 if job.device == "cpu" else torch.cuda.device_count()


def find_start(job: TrainJob) -> Path | None:
    """The step folder that the run goes on from; an error where it cannot go on as the job asks."""
    resume = job.checkpoint.resume
    if resume not in ("auto", "never"):
        return _given_start(Path(resume), job)
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


def is_finished(job: TrainJob, start: Path) -> bool:
    """Whether the step folder is the end of the job's horizon."""
    return int(read_state(start)["step"]) >= job.train.steps


def _given_start(folder: Path, job: TrainJob) -> Path:
    """A step folder that was typed: sound, and of a run like this one."""
    try:
        Manifest.read(folder).check_sizes(folder)
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint.resume={error}") from None
    _check_same_run(folder.absolute().parent.parent, job)
    return folder


def _check_same_run(run_dir: Path, job: TrainJob) -> None:
    """Refuse to go on with other data, seed, batch, model or schedule than the run's own."""
    config = run_dir / "config.yaml"
    if not config.is_file():
        return
    try:
        old = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{config}: cannot be read: {reason}") from None
    if not isinstance(old, dict):
        raise CheckpointError(f"{config}: is not the configuration of a run")
    if faults := check_resume(old, job):
        raise ConfigError(faults)
