"""Loading from a step folder into any layout: each rank reads only the slices that it holds."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from gooseslo.engine.checkpoint.manifest import (
    MASTER,
    Manifest,
    Piece,
    TensorEntry,
    intersect,
    num_elements,
    tensor_name,
)
from gooseslo.errors import CheckpointError
from gooseslo.parallel.tensor.layouts import Box, Placement, slices


def load_tensors(
    folder: Path,
    wanted: Mapping[str, tuple[torch.Tensor, Placement]],
    *,
    optimizer: bool = False,
    manifest: Manifest | None = None,
) -> None:
    """Fill local tensors in place from a step folder of any layout; not collective.

    `wanted` maps full names (tied aliases too) to a local tensor and its place; with `optimizer`, names are
    `<what>/<parameter>`. Floating-point dtypes are cast. CheckpointError for a name that is not there, another shape,
    or a damaged folder.
    """
    manifest = manifest or Manifest.read(folder)
    manifest.check_sizes(folder)
    entries = manifest.optimizer if optimizer else manifest.tensors
    found = {key: _find(folder, manifest, entries, tensor_name(key), *placed) for key, placed in wanted.items()}
    with ExitStack() as stack:
        reader = _Reader(folder, stack)
        for name, (tensor, placement) in wanted.items():
            for box, local_box in zip(placement.boxes, placement.local_boxes(), strict=True):
                _fill(tensor.detach()[slices(local_box)], box, found[name], name, reader)


def load_weights(folder: Path, wanted: Mapping[str, tuple[torch.Tensor, Placement]]) -> None:
    """Fill parameters, or their masters, with the most exact values there are: saved masters, else saved weights.

    So a run may go on in another precision than the one that it was saved in; otherwise as `load_tensors`.
    """
    manifest = Manifest.read(folder)
    masters = {key for key in wanted if manifest.canonical(f"{MASTER}/{tensor_name(key)}") in manifest.optimizer}
    exact = {f"{MASTER}/{name}": placed for name, placed in wanted.items() if name in masters}
    load_tensors(folder, exact, optimizer=True, manifest=manifest)
    rest = {name: placed for name, placed in wanted.items() if name not in masters}
    load_tensors(folder, rest, manifest=manifest)


def _find(
    folder: Path,
    manifest: Manifest,
    entries: Mapping[str, TensorEntry],
    name: str,
    tensor: torch.Tensor,
    placement: Placement,
) -> TensorEntry:
    assert tuple(tensor.shape) == placement.local_shape, (name, tuple(tensor.shape), placement)
    entry = entries.get(name) or entries.get(manifest.canonical(name))
    if entry is None:
        raise CheckpointError(f"{folder}: it holds no {name}; is it of another model or optimizer?")
    if entry.shape != tuple(placement.full_shape):
        raise CheckpointError(
            f"{folder}: {name} has shape {list(entry.shape)}, the model wants {list(placement.full_shape)}"
        )
    stored = getattr(torch, entry.dtype, None)
    if not isinstance(stored, torch.dtype):
        raise CheckpointError(f"{folder}: {name} has the dtype {entry.dtype}, which this torch does not know")
    if stored != tensor.dtype and not (stored.is_floating_point and tensor.dtype.is_floating_point):
        raise CheckpointError(f"{folder}: {name} is {entry.dtype}, the model wants {str(tensor.dtype)[6:]}")
    return entry


def _fill(target: torch.Tensor, box: Box, entry: TensorEntry, name: str, reader: _Reader) -> None:
    """Copy every piece's part of `box` into `target`, the local tensor's view of that box."""
    num_filled = 0
    for piece in entry.pieces:
        common = intersect(box, piece.box)
        if common is not None:
            target[slices(_within(common, box))].copy_(reader.read(piece, common))
            num_filled += num_elements(common)
    if num_filled != num_elements(box):
        raise CheckpointError(f"{reader.folder}: its files hold {num_filled} of {num_elements(box)} elements of {name}")


def _within(common: Box, box: Box) -> Box:
    """A box in the coordinates of another that contains it."""
    return tuple((start - low, stop - low) for (start, stop), (low, _) in zip(common, box, strict=True))


class _Reader:
    """Slices of a folder's safetensors files, each file opened once."""

    def __init__(self, folder: Path, stack: ExitStack):
        self.folder = folder
        self._stack = stack
        self._files: dict[str, Any] = {}

    def read(self, piece: Piece, box: Box) -> torch.Tensor:
        """The part `box` (in the full tensor's coordinates) of what a piece stores."""
        try:
            if piece.file not in self._files:
                opened = safe_open(self.folder / piece.file, framework="pt", device="cpu")
                self._files[piece.file] = self._stack.enter_context(opened)
            file = self._files[piece.file]
            tensor: torch.Tensor
            if box:
                inside = _within(box, piece.box)
                where = tuple((start + at, stop + at) for (start, stop), at in zip(inside, piece.offset, strict=True))
                tensor = file.get_slice(piece.key)[slices(where)]
            else:  # a scalar has no slices
                tensor = file.get_tensor(piece.key)
            return tensor
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{self.folder}: {piece.file} cannot be read: {error}") from error
