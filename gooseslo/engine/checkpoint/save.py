"""Saving a step: every rank writes what is its to write, rank 0 adds the rest, and the folder appears whole or not."""

from __future__ import annotations

import json
import logging
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

import gooseslo
from gooseslo.engine.checkpoint.copies import describe_differences
from gooseslo.engine.checkpoint.folders import STATE, Retention, clean_up, prune, publish_step, step_name
from gooseslo.engine.checkpoint.manifest import (
    FileEntry,
    Manifest,
    Piece,
    TensorEntry,
    canonical_name,
    file_entry,
    tensor_name,
)
from gooseslo.engine.checkpoint.ranks import Ranks
from gooseslo.errors import CheckpointError, SaveError
from gooseslo.parallel.mesh import Coordinates
from gooseslo.parallel.tensor.layouts import Box, Placement, slices
from gooseslo.staging import create_staging, flush

_log = logging.getLogger(__name__)

PlacedTensors = Mapping[str, tuple[torch.Tensor, Placement]]
"""Local tensors with their place in the full ones, by full name."""

_SPARE_BYTES = 1 << 20
"""For manifest, state, configs and tokenizer, when space is checked beforehand."""


@dataclass(frozen=True, kw_only=True)
class LocalState:
    """All that this rank holds; what several ranks hold is saved once, by the lowest of them."""

    tensors: PlacedTensors
    """The model's."""
    optimizer: PlacedTensors = field(default_factory=dict)
    """The optimizer's, named `<what>/<parameter>`."""


@dataclass(frozen=True, kw_only=True)
class _Share:
    """What this rank is to write of one kind (model or optimizer)."""

    tensors: dict[str, tuple[torch.Tensor, Placement]]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor, _ in self.tensors.values())


@dataclass(frozen=True, kw_only=True)
class _Written:
    """What one rank wrote."""

    files: dict[str, FileEntry]
    tensors: dict[str, TensorEntry]
    optimizer: dict[str, TensorEntry]


def save_step(
    checkpoints: Path,
    step: int,
    *,
    local: LocalState,
    coordinates: Coordinates,
    topology: Mapping[str, int],
    state: Mapping[str, Any],
    tied: Mapping[str, str] | None = None,
    write_common: Callable[[Path], None] = lambda folder: None,
    retention: Retention | None = None,
    group: dist.ProcessGroup | None = None,
    warn: Callable[[str], None] = _log.warning,
) -> Path:
    """Write checkpoints/step-<step> and name it in `latest`; returns the folder. Collective on all ranks of `group`.

    `state` becomes state.json and `write_common` adds config, generation config and tokenizer (both used on rank 0);
    `tied` maps aliases to stored names. A folder of the same step gives way only to the complete new one.
    `warn` is told, on rank 0, of a parameter's copies that should be equal and are not; they are saved all the same.
    SaveError on every rank when one of them fails: the earlier checkpoints are then as they were.
    """
    tied = tied or {}
    ranks = Ranks(group)
    staging = ranks.first(lambda: _begin(checkpoints, step))
    try:
        model_share = _share(ranks, local.tensors, tied)
        optimizer_share = _share(ranks, local.optimizer, tied)
        needed_bytes = sum(ranks.gather(model_share.num_bytes + optimizer_share.num_bytes))
        ranks.first(lambda: _check_space(staging, needed_bytes))
        written = ranks.each(lambda: _write_shares(staging, model_share, optimizer_share, coordinates))

        def finish() -> Path:
            write_common(staging)
            (staging / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
            _manifest(staging, written, topology=topology, tied=tied).write(staging)
            return publish_step(staging, checkpoints, step)

        folder = ranks.first(finish)
    except SaveError as error:
        if ranks.rank == 0:
            shutil.rmtree(staging, ignore_errors=True)
        raise type(error)(f"{checkpoints / step_name(step)}: not saved: {error}") from error
    _compare_copies(ranks, local, coordinates, tied, step=step, warn=warn)
    ranks.first(lambda: prune(checkpoints, newest=step, retention=retention or Retention()))
    return folder


def _compare_copies(
    ranks: Ranks,
    local: LocalState,
    coordinates: Coordinates,
    tied: Mapping[str, str],
    *,
    step: int,
    warn: Callable[[str], None],
) -> None:
    """Warn, on rank 0, of copies that differ; after the save, which no diagnosis may cost. Collective."""
    try:
        difference = describe_differences(
            ranks, local.tensors, local.optimizer, coordinates=coordinates, tied=tied, step_name=step_name(step)
        )
    except SaveError as error:
        difference = f"{step_name(step)}: what ranks should hold alike was not compared: {error}"
    if difference is not None and ranks.rank == 0:
        warn(difference)


def _begin(checkpoints: Path, step: int) -> Path:
    checkpoints.mkdir(parents=True, exist_ok=True)
    clean_up(checkpoints)
    return create_staging(checkpoints / step_name(step))


def _share(ranks: Ranks, held: PlacedTensors, tied: Mapping[str, str]) -> _Share:
    """Of all boxes that this rank holds, those that no lower rank holds. Collective."""
    named: dict[str, tuple[torch.Tensor, Placement]] = {}
    for key, placed in held.items():
        named.setdefault(canonical_name(key, tied), placed)
    boxes_by_rank = ranks.gather(
        [(tensor_name(key), box) for key, (_, placement) in named.items() for box in placement.boxes]
    )
    taken = {named_box for lower in boxes_by_rank[: ranks.rank] for named_box in lower}
    share = {}
    for key, (tensor, placement) in named.items():
        assert tuple(tensor.shape) == placement.local_shape, (key, tuple(tensor.shape), placement)
        own = [index for index, box in enumerate(placement.boxes) if (tensor_name(key), box) not in taken]
        if own:
            share[key] = _restrict(tensor, placement, own)
    return _Share(tensors=share)


def _restrict(tensor: torch.Tensor, placement: Placement, indices: Sequence[int]) -> tuple[torch.Tensor, Placement]:
    """A local tensor cut down to some of its boxes."""
    if len(indices) == len(placement.boxes):
        return tensor, placement
    local_boxes = placement.local_boxes()
    parts = [tensor[slices(local_boxes[index])] for index in indices]
    boxes = tuple(placement.boxes[index] for index in indices)
    return torch.cat(parts, dim=placement.dim or 0), Placement(
        full_shape=placement.full_shape, boxes=boxes, dim=placement.dim
    )


def _check_space(folder: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes + _SPARE_BYTES > free_bytes:
        raise CheckpointError(f"the disk is too full: {needed_bytes} bytes are needed, {free_bytes} are free")


def _write_shares(folder: Path, model: _Share, optimizer: _Share, coordinates: Coordinates) -> _Written:
    """This rank's files; none where it has nothing to write."""
    place = f"tp={coordinates.tp}_pp={coordinates.pp}"
    # The model's files carry dp only where data-parallel ranks share the writing.
    model_file = f"model_{place}_dp={coordinates.dp}" if coordinates.dp else f"model_{place}"
    optimizer_file = f"optimizer_{place}_dp={coordinates.dp}"
    files: dict[str, FileEntry] = {}
    entries = []
    for share, stem in ((model, model_file), (optimizer, optimizer_file)):
        name = f"{stem}.safetensors"
        if share.tensors:
            files[name] = _write_file(folder / name, share)
        entries.append({key: _entry(name, key, *placed) for key, placed in share.tensors.items()})
    return _Written(files=files, tensors=entries[0], optimizer=entries[1])


def _write_file(path: Path, share: _Share) -> FileEntry:
    save_file({name: tensor.detach().cpu().contiguous() for name, (tensor, _) in share.tensors.items()}, path)
    flush(path)
    entry = file_entry(path)
    if entry.bytes < share.num_bytes:
        raise CheckpointError(f"{path}: {entry.bytes} bytes were written, {share.num_bytes} were due")
    return entry


def _entry(file: str, key: str, tensor: torch.Tensor, placement: Placement) -> TensorEntry:
    def piece(box: Box, local_box: Box) -> Piece:
        return Piece(file=file, key=key, box=box, offset=tuple(start for start, _ in local_box))

    return TensorEntry(
        shape=tuple(placement.full_shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        pieces=tuple(map(piece, placement.boxes, placement.local_boxes())),
    )


def _manifest(
    folder: Path, written: Sequence[_Written], *, topology: Mapping[str, int], tied: Mapping[str, str]
) -> Manifest:
    """All ranks' entries together, complete, and every file of the folder."""
    files = {name: entry for rank in written for name, entry in rank.files.items()}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in files:
            files[name] = file_entry(path)
    tensors = _join([rank.tensors for rank in written])
    return Manifest(
        versions={
            "gooseslo": gooseslo.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "safetensors")},
        },
        topology=dict(topology),
        tensors=tensors,
        optimizer=_join([rank.optimizer for rank in written]),
        tied={alias: name for alias, name in tied.items() if name in tensors},
        files=files,
    )


def _join(by_rank: Sequence[Mapping[str, TensorEntry]]) -> dict[str, TensorEntry]:
    """Entries of the same name with all their pieces. CheckpointError if they do not make a whole tensor."""
    joined: dict[str, TensorEntry] = {}
    for entries in by_rank:
        for key, entry in entries.items():
            name = tensor_name(key)
            before = joined.get(name)
            if before is not None:
                if (before.shape, before.dtype) != (entry.shape, entry.dtype):
                    raise CheckpointError(f"{name}: ranks disagree on its shape or dtype")
                entry = TensorEntry(shape=entry.shape, dtype=entry.dtype, pieces=before.pieces + entry.pieces)
            joined[name] = entry
    for name, entry in joined.items():
        entry.check_cover(name)
    return joined
