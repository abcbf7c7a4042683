"""What may be asked of a run while it trains: to save and stop, by a signal; to save and go on, by a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

SAVE_FILE = "SAVE_NOW"


class Requests:
    """This rank's requests; the loop brings all ranks to the same answer.

    `signal_number` gives the signal that this rank received, 0 for none. `run_dir` is where the file is looked for:
    on rank 0 alone, None on the others.
    """

    def __init__(self, *, signal_number: Callable[[], int] = lambda: 0, run_dir: Path | None = None):
        self._signal_number = signal_number
        self._save_file = run_dir / SAVE_FILE if run_dir else None

    def pending(self) -> tuple[int, int]:
        """The number of the signal to stop on, and 1 where a save is asked for; the larger over all ranks counts."""
        return self._signal_number(), int(self._save_file is not None and self._save_file.is_file())

    def saved(self) -> None:
        """What was asked for is on the disk."""
        if self._save_file is not None:
            self._save_file.unlink(missing_ok=True)
