"""A checkpoint of any layout to one Hub-style folder, which `AutoModelForCausalLM.from_pretrained` loads."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from gooseslo.engine.checkpoint.folders import STATE, find_latest, step_folders
from gooseslo.engine.checkpoint.load import load_tensors
from gooseslo.engine.checkpoint.manifest import FILE_NAME, Manifest
from gooseslo.engine.run_folder import CHECKPOINTS
from gooseslo.errors import CheckpointError, ConfigError, Fault
from gooseslo.parallel.tensor.layouts import whole
from gooseslo.staging import staged_folder


def merge_checkpoint(source: Path, output: Path, *, step: str = "latest") -> Path:
    """Write `output` from a run folder (its step `step`: latest or a number) or from a step folder; returns the latter.

    ConfigError for what was typed wrongly, CheckpointError for a folder that is not a sound checkpoint; `output`
    appears complete or not at all.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(
            Fault(
                key="output",
                value=output,
                rule="exists and is not an empty folder",
                way_out="name a new folder; nothing is overwritten",
            )
        )
    folder = find_step(source, step)
    manifest = Manifest.read(folder)
    manifest.check_sizes(folder)
    for name, entry in manifest.tensors.items():
        entry.check_cover(name)
    model_files = {piece.file for entry in manifest.tensors.values() for piece in entry.pieces}
    for name in sorted(model_files):
        manifest.check_content(folder, name)
    with staged_folder(output.absolute()) as staging:
        # Tied aliases are not stored: transformers ties them again from the config.
        tensors = _assemble(folder, manifest)
        save_file(tensors, staging / "model.safetensors", metadata={"format": "pt"})
        for name in manifest.files:
            if name != STATE and not name.endswith(".safetensors"):
                (staging / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / name, staging / name)
    return folder


def find_step(source: Path, step: str = "latest") -> Path:
    """The step folder that `source` is, or that step of a run folder. ConfigError if there is none."""
    if not source.is_dir():
        raise ConfigError(Fault(key="input", value=source, rule="no such folder", way_out="give a run or step folder"))
    if (source / FILE_NAME).is_file():
        if step != "latest":
            rule = "chooses a step of a run folder, but input is a step folder"
            raise ConfigError(Fault(key="model.step", value=step, rule=rule, way_out="leave it out"))
        return source
    folders = step_folders(source / CHECKPOINTS)
    if not folders:
        rule = "neither a run folder with a complete checkpoint nor a step folder"
        raise ConfigError(Fault(key="input", value=source, rule=rule))
    if step == "latest":
        latest = find_latest(source)
        if latest is None:
            raise CheckpointError(f"{source}: none of its {len(folders)} checkpoints is complete")
        return latest
    if not step.isdecimal() or int(step) not in folders:
        steps = [str(number) for number in folders]
        shown = ", ".join(steps[-8:]) + (f" and {len(steps) - 8} earlier ones" if len(steps) > 8 else "")
        raise ConfigError(Fault(key="model.step", value=step, rule="no such step", way_out=f"latest, {shown}"))
    return folders[int(step)]


def _assemble(folder: Path, manifest: Manifest) -> dict[str, torch.Tensor]:
    """Every full tensor, in memory."""
    tensors = {
        name: torch.empty(entry.shape, dtype=getattr(torch, entry.dtype)) for name, entry in manifest.tensors.items()
    }
    load_tensors(folder, {name: (tensor, whole(tuple(tensor.shape))) for name, tensor in tensors.items()})
    return tensors
