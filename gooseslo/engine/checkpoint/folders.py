"""The checkpoints of a run as folders: which steps there are, which is the newest complete one, which may go."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gooseslo.engine.checkpoint.manifest import FILE_NAME, Manifest
from gooseslo.engine.run_folder import CHECKPOINTS
from gooseslo.errors import CheckpointError
from gooseslo.staging import create_staging, publish, remove_stale, write_text

LATEST = "latest"
STATE = "state.json"
_STEP_FOLDER = re.compile(r"(\.?)step-(\d{8,})(\.replaced)?")


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Which step folders stay after a save; the newest complete one always does."""

    keep: int = 0
    """Newest ones kept; 0: all."""
    keep_every: int = 0
    """Multiples of this are kept; 0: none."""


def step_name(step: int) -> str:
    """step-00000020: as text, these sort by step (up to 8 digits; nothing here relies on it)."""
    return f"step-{step:08d}"


def step_folders(checkpoints: Path) -> dict[int, Path]:
    """Folders with a manifest by step, ascending. One set aside by a save that was killed counts where it is alone."""
    found: dict[int, Path] = {}
    if checkpoints.is_dir():
        for path in sorted(checkpoints.iterdir(), reverse=True):  # ".step-..." comes after "step-..."
            match = _STEP_FOLDER.fullmatch(path.name)
            if match and bool(match[1]) == bool(match[3]) and (path / FILE_NAME).is_file():
                found.setdefault(int(match[2]), path)
    return dict(sorted(found.items()))


def is_complete(folder: Path) -> bool:
    """Whether the manifest is there and sound, and every file has its size."""
    try:
        Manifest.read(folder).check_sizes(folder)
    except CheckpointError:
        return False
    return True


def find_latest(run_dir: Path) -> Path | None:
    """The step folder that `latest` names, or else the newest complete one; None if the run has none."""
    checkpoints = run_dir / CHECKPOINTS
    folders = step_folders(checkpoints)
    try:
        named = checkpoints / (checkpoints / LATEST).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        named = None
    # `latest` comes first: a run resumed from an older step leaves higher numbers of its abandoned course behind.
    if named is not None and named in folders.values() and is_complete(named):
        return named
    return next((folder for folder in reversed(folders.values()) if is_complete(folder)), None)


def passed_over(folder: Path) -> str | None:
    """Why `latest` of the run names another step folder than `folder`, the one that is used; None where it does not."""
    checkpoints = folder.parent
    try:
        name = (checkpoints / LATEST).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    if name == folder.name:
        return None
    try:
        Manifest.read(checkpoints / name).check_sizes(checkpoints / name)
    except CheckpointError as error:
        return f"{folder.name} is used, not {name}, which {LATEST} names: {error}"
    return None


def read_state(folder: Path) -> dict[str, Any]:
    """The trainer's state of a step folder. CheckpointError if it is absent or broken."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / STATE}: cannot be read: {error}") from None
    return state


def publish_step(staging: Path, checkpoints: Path, step: int) -> Path:
    """Give a complete folder its final name, then name it in `latest`; an older folder of that step gives way."""
    final = checkpoints / step_name(step)
    replaced = checkpoints / f".{final.name}.replaced"
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    try:
        publish(staging, final)
    except OSError:
        if replaced.exists() and not final.exists():
            replaced.rename(final)
        raise
    shutil.rmtree(replaced, ignore_errors=True)
    write_text(checkpoints / LATEST, final.name + "\n")
    return final


def clean_up(checkpoints: Path) -> None:
    """Remove what killed saves left; a folder they had set aside gets its name back."""
    remove_stale(checkpoints)
    for replaced in checkpoints.glob(".step-*.replaced"):
        final = checkpoints / replaced.name.removeprefix(".").removesuffix(".replaced")
        if final.exists():
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            replaced.rename(final)


def prune(checkpoints: Path, *, newest: int, retention: Retention) -> list[Path]:
    """Remove old step folders after step `newest` is complete; returns those removed.

    Higher steps, of a course that was abandoned, are neither counted nor touched.
    """
    if retention.keep == 0:
        return []
    steps = {step: folder for step, folder in step_folders(checkpoints).items() if step <= newest}
    kept = {newest, *sorted(steps)[-retention.keep :]}
    doomed = [
        folder
        for step, folder in steps.items()
        if step not in kept and not (retention.keep_every and step % retention.keep_every == 0)
    ]
    for folder in doomed:
        # Renamed first: a folder half removed must not look like a checkpoint.
        hidden = create_staging(folder)
        folder.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)
    return doomed
