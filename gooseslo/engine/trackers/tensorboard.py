"""The records as TensorBoard event files in the run folder."""

from __future__ import annotations

from pathlib import Path

from gooseslo.engine.trackers.scalars import scalars

FOLDER = "tensorboard"
_FLUSH_SECONDS = 10


class TensorBoard:
    """Writes event files; a continued run writes further ones, which TensorBoard shows as one curve."""

    def __init__(self, run_dir: Path, *, first_step: int):
        """From `first_step` on, what an earlier start of the run wrote is void: those steps are done again."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run_dir / FOLDER), purge_step=first_step, flush_secs=_FLUSH_SECONDS)

    def __call__(self, record: dict[str, object]) -> None:
        step = record.get("step")
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
