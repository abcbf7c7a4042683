"""Where a run begins and ends: at random weights, or at a step folder that is whole, of the same run and model.

Imports no model class, so that what is wrong is said within seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from gooseslo.engine.checkpoint.folders import find_latest, read_state
from gooseslo.engine.checkpoint.manifest import Manifest
from gooseslo.engine.run_folder import CONFIG
from gooseslo.errors import CheckpointError, ConfigError, Fault
from gooseslo.schema.groups import TrainJob
from gooseslo.schema.resume import check_resume


def last_step(job: TrainJob) -> int:
    """Where this start of the run ends."""
    return job.train.steps if job.train.stop_after is None else job.train.stop_after


def find_start(job: TrainJob) -> Path | None:
    """The step folder that the run goes on from; None: random weights.

    ConfigError where the run cannot go on as the job asks, CheckpointError for a folder that is damaged.
    """
    resume = job.checkpoint.resume
    if resume not in ("auto", "never"):
        start = Path(resume).resolve()
        run_dir = start.parent.parent
        if not (run_dir / CONFIG).is_file():
            rule = f"is not a step folder inside a run ({run_dir} has no {CONFIG})"
            raise ConfigError(Fault(key="checkpoint.resume", value=resume, rule=rule))
    else:
        named = Path(job.run.dir) if job.run.dir else Path("runs") / job.run.name if job.run.name else None
        if named is None or not named.is_dir():
            return None
        run_dir = named
        latest = find_latest(run_dir)
        if latest is not None and resume == "never":
            rule = f"{run_dir} holds checkpoints of an earlier run, which would be lost"
            raise ConfigError(
                Fault(key="checkpoint.resume", value=resume, rule=rule, way_out="start another run with run.name=NAME")
            )
        if latest is None:
            _check_same_run(run_dir, job)
            return None
        start = latest
    _check_same_run(run_dir, job)
    try:
        Manifest.read(start).check_sizes(start)
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint.resume={resume}: {error}") from None
    return start


def is_finished(job: TrainJob, start: Path) -> bool:
    """Whether the run stands where this start of it would end."""
    return int(read_state(start)["step"]) >= last_step(job)


def check_same_data(start: Path, identity: str) -> None:
    """Refuse to go on with other tokens than the run began with: text, tokenizer or Python may have changed."""
    before = read_state(start).get("data")
    if before != identity:
        rule = f"the text or the tokenizer is not that of {start}: other samples would follow"
        raise ConfigError(Fault(key="data", rule=rule, way_out="start another run with run.name=NAME"))


def _check_same_run(run_dir: Path, job: TrainJob) -> None:
    """Refuse to go on with other data, seed, batch, model or schedule than the run's own."""
    config = run_dir / CONFIG
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


def check_same_model(start: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a step folder whose tensors are not of these full shapes."""
    stored = {name: entry.shape for name, entry in Manifest.read(start).tensors.items()}
    for name, shape in shapes.items():
        if stored.get(name) != shape:
            found = f"has {list(stored[name])}" if name in stored else "lacks it"
            raise CheckpointError(f"{start}: of another model: {name} is {list(shape)}, and the checkpoint {found}")
