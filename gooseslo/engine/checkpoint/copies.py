"""Whether the copies of a parameter on several ranks still agree: a checkpoint keeps one and would hide the others."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gooseslo.engine.checkpoint.manifest import MASTER, canonical_name, tensor_name
from gooseslo.engine.checkpoint.ranks import Ranks
from gooseslo.parallel.mesh import Coordinates
from gooseslo.parallel.tensor.layouts import Box, Placement, slices

_NUM_NAMED = 3
_CHUNK_ELEMENTS = 1 << 20
"""So much of a copy travels at a time: every rank receives as much from every other."""

Key = tuple[str, Box]
"""A box of a tensor, by the name that the tensor is saved under."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A box of a tensor of which ranks that should hold the same bits do not."""

    name: str
    """Of the tensor."""
    copies: tuple[tuple[int, ...], ...]
    """The ranks of each of the different copies, the lowest first."""
    largest: float
    """The largest difference of an element between two copies; inf where one is not finite."""


def describe_differences(
    ranks: Ranks,
    weights: Mapping[str, tuple[torch.Tensor, Placement]],
    optimizer: Mapping[str, tuple[torch.Tensor, Placement]],
    *,
    coordinates: Coordinates,
    tied: Mapping[str, str],
    step_name: str,
) -> str | None:
    """A paragraph on the copies of weights and masters that differ, bit by bit, between ranks; None where all agree.

    Compared is what tp ranks and tied ends hold in common: norms, biases, a table tied over two stages. Collective.
    """
    if ranks.size == 1:
        return None
    masters = {name: placed for name, placed in optimizer.items() if name.startswith(f"{MASTER}/")}
    held = boxes_by_key({**weights, **masters}, tied)
    # To compare whole replicas would be too much to read.
    found = differences(ranks, held, shared_keys(ranks, held, replica=coordinates.dp))
    if not found:
        return None
    names = list(dict.fromkeys(each.name.removeprefix(f"{MASTER}/") for each in found))
    worst = max(found, key=lambda each: each.largest)
    more = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
    return (
        f"{step_name}: ranks differ in what they should hold alike, in {len(names)} parameter{'s' * (len(names) > 1)}: "
        f"{', '.join(names[:_NUM_NAMED])}{more}; the largest difference is {worst.largest:.2g}, in {worst.name}. "
        "The checkpoint has the lowest rank's copies, and a run that goes on from it has them on all ranks. Copies "
        "drift apart where their gradient is not summed over all ranks that hold one, or where a rank computes wrongly."
    )


def boxes_by_key(
    held: Mapping[str, tuple[torch.Tensor, Placement]], tied: Mapping[str, str]
) -> dict[Key, torch.Tensor]:
    """Views of the local tensors, one for each box of the full ones."""
    found: dict[Key, torch.Tensor] = {}
    for key, (tensor, placement) in held.items():
        name = tensor_name(canonical_name(key, tied))
        for box, local_box in zip(placement.boxes, placement.local_boxes(), strict=True):
            found.setdefault((name, box), tensor.detach()[slices(local_box)])
    return found


def shared_keys(ranks: Ranks, held: Mapping[Key, torch.Tensor], *, replica: int = 0) -> set[Key]:
    """What several ranks of one and the same `replica` hold. Collective."""
    seen: set[tuple[int, Key]] = set()
    shared: set[Key] = set()
    for number, keys in ranks.gather((replica, list(held))):
        shared |= {key for key in keys if (number, key) in seen}
        seen |= {(number, key) for key in keys}
    return shared


def differences(ranks: Ranks, held: Mapping[Key, torch.Tensor], shared: set[Key]) -> list[Difference]:
    """Those of the `shared` boxes whose copies differ bit by bit, by name; equal on all ranks. Collective."""
    digests = ranks.each(lambda: {key: _digest(tensor) for key, tensor in held.items() if key in shared})
    found = []
    for key in sorted(shared):
        of_rank = [digest.get(key) for digest in digests]
        distinct = list(dict.fromkeys(digest for digest in of_rank if digest is not None))
        if len(distinct) > 1:
            copies = tuple(tuple(rank for rank, digest in enumerate(of_rank) if digest == each) for each in distinct)
            largest = _largest_difference(ranks, key, held.get(key), of_rank)
            found.append(Difference(name=key[0], copies=copies, largest=largest))
    return found


def _digest(tensor: torch.Tensor) -> bytes:
    content = tensor.contiguous().reshape(-1).view(torch.uint8).cpu().numpy()
    return hashlib.blake2b(content.data, digest_size=16).digest()


def _largest_difference(ranks: Ranks, key: Key, mine: torch.Tensor | None, digests: Sequence[bytes | None]) -> float:
    """The largest difference of an element between any two copies; inf where one is not finite. Collective.

    Each different copy is read once, and a part of it at a time.
    """
    is_first = digests.index(digests[ranks.rank]) == ranks.rank
    flat = mine.reshape(-1) if mine is not None and is_first else None
    largest = 0.0
    for start in range(0, math.prod(stop - begin for begin, stop in key[1]), _CHUNK_ELEMENTS):
        # A copy, since a view would travel with all of the tensor that it is a part of.
        part = None if flat is None else flat[start : start + _CHUNK_ELEMENTS].to("cpu", copy=True)
        copies = torch.stack([copy.double() for copy in ranks.gather(part) if copy is not None])
        difference = (copies.amax(dim=0) - copies.amin(dim=0)).max().item()
        largest = max(largest, difference) if math.isfinite(difference) else math.inf
    return largest
