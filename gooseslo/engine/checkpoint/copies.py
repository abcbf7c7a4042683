"""Whether the copies of a parameter on several ranks still agree: a checkpoint keeps one and would hide the others."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

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
    held = _boxes({**weights, **masters}, tied)
    shared = _shared_in_a_replica(ranks.gather((coordinates.dp, list(held))))
    digests = ranks.each(lambda: {key: _digest(tensor) for key, tensor in held.items() if key in shared})
    copies = {key: [of_rank.get(key) for of_rank in digests] for key in sorted(shared)}
    differing = {key: found for key, found in copies.items() if len(set(found) - {None}) > 1}
    if not differing:
        return None
    largest = {key: _largest_difference(ranks, key, held.get(key), found) for key, found in differing.items()}
    names = list(dict.fromkeys(name.removeprefix(f"{MASTER}/") for name, _ in differing))
    (worst, _), difference = max(largest.items(), key=lambda item: item[1])
    more = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
    return (
        f"{step_name}: ranks differ in what they should hold alike, in {len(names)} parameter{'s' * (len(names) > 1)}: "
        f"{', '.join(names[:_NUM_NAMED])}{more}; the largest difference is {difference:.2g}, in {worst}. "
        "The checkpoint has the lowest rank's copies, and a run that goes on from it has them on all ranks. Copies "
        "drift apart where their gradient is not summed over all ranks that hold one, or where a rank computes wrongly."
    )


def _boxes(held: Mapping[str, tuple[torch.Tensor, Placement]], tied: Mapping[str, str]) -> dict[Key, torch.Tensor]:
    """Views of the local tensors, one for each box of the full ones."""
    found: dict[Key, torch.Tensor] = {}
    for key, (tensor, placement) in held.items():
        name = tensor_name(canonical_name(key, tied))
        for box, local_box in zip(placement.boxes, placement.local_boxes(), strict=True):
            found.setdefault((name, box), tensor.detach()[slices(local_box)])
    return found


def _shared_in_a_replica(keys_by_rank: Sequence[tuple[int, list[Key]]]) -> set[Key]:
    """What several ranks of one data-parallel replica hold; to compare whole replicas would be too much to read."""
    seen: set[tuple[int, Key]] = set()
    shared: set[Key] = set()
    for dp, keys in keys_by_rank:
        shared |= {key for key in keys if (dp, key) in seen}
        seen |= {(dp, key) for key in keys}
    return shared


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
