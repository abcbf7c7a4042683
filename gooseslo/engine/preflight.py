"""What is wrong with a training job beside its own values: devices, files, the run folder and its checkpoint.

Imports no model class, so that the answer comes within seconds, before anything is prepared or made.
"""

from __future__ import annotations

from pathlib import Path

import torch

from gooseslo.data.text_files import TextCorpus
from gooseslo.engine.run_folder import check_run_folder
from gooseslo.engine.start import find_start
from gooseslo.errors import ConfigError
from gooseslo.schema.checks import check_train
from gooseslo.schema.groups import TextDataConfig, TrainJob


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
