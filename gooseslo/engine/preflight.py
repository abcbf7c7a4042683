"""What is wrong with a training job beside its own values: devices, files, the run folder and its checkpoint.

Imports no model class, so that the answer comes within seconds, before anything is prepared or made.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from gooseslo.data.indexed.mixture import Mixture
from gooseslo.data.supervised.record_files import RecordFiles
from gooseslo.data.text.text_files import TextCorpus
from gooseslo.engine.callbacks import check_callbacks
from gooseslo.engine.deepspeed import check_settings
from gooseslo.engine.partition_function import check_partition
from gooseslo.engine.run_folder import check_run_folder
from gooseslo.engine.start import find_start
from gooseslo.errors import ConfigError
from gooseslo.schema.checks import check_train
from gooseslo.schema.data_groups import (
    ClassificationDataConfig,
    IndexedDataConfig,
    InstructionDataConfig,
    TextDataConfig,
)
from gooseslo.schema.groups import TrainJob


def preflight(job: TrainJob) -> None:
    """Raise ConfigError, DataError or CheckpointError for all that this machine's files and devices can show."""
    if faults := check_train(job, num_devices=num_devices(job)):
        raise ConfigError(faults)
    if isinstance(job.data, TextDataConfig):
        data = job.data
        TextCorpus(train=data.train, valid=data.valid, test=data.test, text_key=data.text_key, base_dir=Path.cwd())
    elif isinstance(job.data, InstructionDataConfig | ClassificationDataConfig):
        RecordFiles(train=job.data.train, valid=job.data.valid, test=job.data.test, base_dir=Path.cwd())
    elif isinstance(job.data, IndexedDataConfig):
        mixture = Mixture(train=job.data.train, valid=job.data.valid, test=job.data.test, base_dir=Path.cwd())
        mixture.check_samples(splits_to_check(job, mixture.splits), job.train.sequence_length)
    if job.zero.deepspeed:
        check_settings(job.zero.deepspeed, device="cuda" if num_devices(job) else "cpu")
    check_callbacks(job.parallel.callbacks)
    check_partition(job.parallel.partition)
    check_run_folder(name=job.run.name, directory=job.run.dir)
    find_start(job)


def num_devices(job: TrainJob) -> int:
    """CUDA devices to train on; 0 for the CPU."""
    return 0 if job.device == "cpu" else torch.cuda.device_count()


def splits_to_check(job: TrainJob, splits: Iterable[str]) -> list[str]:
    """Those that must hold a sample: of prepared files only what the run reads, of text all that is given."""
    unread = {"test"} | ({"valid"} if job.train.eval_batches == 0 else set())
    return [split for split in splits if split not in unread or not isinstance(job.data, IndexedDataConfig)]
