"""Where a run begins: at random weights, or at a step folder that is whole, of the same run and of the same model."""

from __future__ import annotations

from pathlib import Path

import yaml

from gooseslo.engine.build import last_step
from gooseslo.engine.checkpoint.folders import find_latest, read_state
from gooseslo.engine.checkpoint.manifest import Manifest
from gooseslo.engine.plan import Plan
from gooseslo.engine.sources import RunData
from gooseslo.errors import CheckpointError, ConfigError, Fault
from gooseslo.schema.groups import TrainJob
from gooseslo.schema.resume import check_resume

CONFIG = "config.yaml"


def find_start(job: TrainJob, plan: Plan) -> Path | None:
    """The step folder that the run goes on from; None: random weights.

    ConfigError where the run cannot go on as the job asks, CheckpointError for a folder that is damaged or of another
    model.
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
    _check_same_model(start, plan)
    return start


def is_finished(job: TrainJob, start: Path) -> bool:
    """Whether the run stands where this start of it would end."""
    return int(read_state(start)["step"]) >= last_step(job)


def check_same_data(start: Path, data: RunData) -> None:
    """Refuse to go on with other tokens than the run began with: text, tokenizer or Python may have changed."""
    before = read_state(start).get("data")
    if before != data.identity:
        rule = f"the text or the tokenizer is not that of {start}: other samples would follow"
        raise ConfigError(Fault(key="data", rule=rule, way_out="start another run with run.name=NAME"))


def _check_same_run(run_dir: Path, job: TrainJob) -> None:
    """Refuse to go on with other data, seed, batch, model or schedule than the run's own."""
    config = run_dir / CONFIG
    if config.is_file():
        faults = check_resume(yaml.safe_load(config.read_text(encoding="utf-8")), job)
        if faults:
            raise ConfigError(faults)


def _check_same_model(start: Path, plan: Plan) -> None:
    """Refuse a damaged folder, and one whose tensors are not this model's."""
    manifest = Manifest.read(start)
    manifest.check_sizes(start)
    stored = {name: entry.shape for name, entry in manifest.tensors.items()}
    for name, shape in plan.shapes.items():
        if stored.get(name) != shape:
            found = f"has {list(stored[name])}" if name in stored else "lacks it"
            raise CheckpointError(f"{start}: of another model: {name} is {list(shape)}, and the checkpoint {found}")
