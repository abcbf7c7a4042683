"""The run folder: made once, by the parent, for one live run at a time; what a run leaves behind lies in it."""

from __future__ import annotations

import datetime
import fcntl
import importlib.metadata
import itertools
import json
import os
import platform
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gooseslo.errors import ConfigError, Fault
from gooseslo.staging import write_text

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
LOGS = "logs"
CHECKPOINTS = "checkpoints"
"""What lies in a run folder, by the names that users know."""

_LOCK = ".lock"
_PACKAGES = ("gooseslo", "torch", "transformers", "hydra-core", "omegaconf", "safetensors", "tokenizers", "numpy")


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """A locked run folder."""

    path: Path
    lock_fd: int

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def write(self, name: str, text: str) -> None:
        """Write a small file whole or not at all."""
        write_text(self.path / name, text)

    def describe(
        self, *, config_yaml: str, overrides: Iterable[str], plan: str, environment: Mapping[str, Any]
    ) -> None:
        """Write the four files that say what the run is."""
        self.write(CONFIG, config_yaml)
        self.write("overrides.txt", "".join(f"{override}\n" for override in overrides))
        self.write("plan.txt", plan if plan.endswith("\n") else plan + "\n")
        self.write("environment.json", json.dumps(environment, indent=2) + "\n")

    def close(self) -> None:
        """Let other runs have the folder; workers that still live keep it locked."""
        os.close(self.lock_fd)


def check_run_folder(*, name: str | None, directory: str | None, root: Path = Path("runs")) -> None:
    """Raise the ConfigError that `open_run_folder` would raise, as far as looking shows it; makes nothing."""
    key, value, path = _folder_of(name, directory, root)
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise ConfigError(Fault(key=key, value=value, rule=f"{existing} is a file, not a run folder"))
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(Fault(key=key, value=value, rule=f"the folder {existing} cannot be written to"))
    if existing != path or (name is None and directory is None):
        return
    _check_continued(path, key, value)
    if (path / _LOCK).exists():
        os.close(_lock(path, key=key, value=value))


def open_run_folder(
    *, name: str | None, directory: str | None, model_name: str, now: datetime.datetime, root: Path = Path("runs")
) -> RunFolder:
    """Make or continue the folder of a run and lock it.

    Without a name it is a new folder `<root>/<model>-<time>`, with -2, -3, ... where that exists; a folder that the
    user named is continued where it exists. Relative paths are the caller's. Raises ConfigError.
    """
    if directory is None and name is None:
        return _make_new(root, f"{model_name}-{now:%Y%m%d-%H%M%S}")
    key, value, path = _folder_of(name, directory, root)
    is_new = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ConfigError(Fault(key=key, value=value, rule=f"{path} is a file, not a run folder")) from None
    except OSError as error:
        raise ConfigError(Fault(key=key, value=value, rule=f"the folder {path} cannot be made: {error}")) from error
    if not is_new:
        _check_continued(path, key, value)
    return _locked(path, key=key, value=value)


def describe_environment(argv: Iterable[str], now: datetime.datetime) -> dict[str, Any]:
    """What one needs to know to repeat the run elsewhere: versions, machine, command, start."""
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "command": list(argv),
        "working_directory": os.getcwd(),
        "started": now.astimezone().isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpu_cores": len(os.sched_getaffinity(0)),
        "python": sys.version.split()[0],
        "versions": versions,
    }


def _folder_of(name: str | None, directory: str | None, root: Path) -> tuple[str, str | None, Path]:
    """The key that decides where the run lies, its value, and the folder; `root` itself for a run without a name."""
    if directory is not None:
        return "run.dir", directory, Path(directory)
    return ("run.dir", None, root) if name is None else ("run.name", name, root / name)


def _make_new(root: Path, stem: str) -> RunFolder:
    """The first of `stem`, `stem-2`, `stem-3`, ... that is not there; two runs of one second get two folders."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            path = root / (stem if number == 1 else f"{stem}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return _locked(path, key="run.name", value=path.name)
    except OSError as error:
        way_out = "give a folder that you may write to with run.dir"
        raise ConfigError(
            Fault(key="run.dir", rule=f"no folder can be made in {root}: {error}", way_out=way_out)
        ) from error
    raise AssertionError("the numbers do not end")


def _check_continued(path: Path, key: str, value: str | None) -> None:
    """Refuse what exists and is no run: files of another kind must not be mixed with ours."""
    names = os.listdir(path)
    if names and CONFIG not in names and _LOCK not in names:
        rule = f"the folder {path} has files in it and is not a run (it has no {CONFIG})"
        raise ConfigError(Fault(key=key, value=value, rule=rule, way_out="give a new or empty folder"))


def _locked(path: Path, *, key: str, value: str | None) -> RunFolder:
    folder = RunFolder(path=path, lock_fd=_lock(path, key=key, value=value))
    path.joinpath(LOGS).mkdir(exist_ok=True)
    folder.checkpoints.mkdir(exist_ok=True)
    return folder


def _lock(path: Path, *, key: str, value: str | None) -> int:
    """The descriptor that holds the folder for this run; ConfigError where another live run holds it."""
    try:
        lock_fd = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(Fault(key=key, value=value, rule=f"{path} cannot be written to: {error}")) from error
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock_fd)
        way_out = "wait until it ends, stop it, or give this run another run.name"
        raise ConfigError(
            Fault(key=key, value=value, rule=f"another live run is using {path}", way_out=way_out)
        ) from None
    return lock_fd
