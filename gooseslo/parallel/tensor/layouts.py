"""Where a rank's piece of a parameter lies in the full tensor: boxes, and the named layouts that cut them.

A `Placement` is what splitting, random initialisation, checkpoints and merging share, so that each of them is one
loop over boxes. A fused weight (GPT-2's query, key and value side by side) is several boxes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Box = tuple[tuple[int, int], ...]
"""(start, stop) of every dim of the full tensor."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The boxes of a full tensor that one rank holds, concatenated along `dim` in this order.

    `dim` is None where the rank holds the whole tensor (replicated over the tp axis); then there is one box.
    """

    full_shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    dim: int | None = None
    copies: int = 1
    """How many neighbouring tp ranks hold these very boxes; a whole tensor is held by all."""

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the local tensor."""
        shape = [stop - start for start, stop in self.boxes[0]]
        if self.dim is not None:
            shape[self.dim] = sum(box[self.dim][1] - box[self.dim][0] for box in self.boxes)
        return tuple(shape)

    def local_boxes(self) -> tuple[Box, ...]:
        """For each box, where it lies in the local tensor."""
        result: list[Box] = []
        offset = 0
        for box in self.boxes:
            local = [(0, stop - start) for start, stop in box]
            if self.dim is not None:
                length = box[self.dim][1] - box[self.dim][0]
                local[self.dim] = (offset, offset + length)
                offset += length
            result.append(tuple(local))
        return tuple(result)

    def take(self, full: torch.Tensor) -> torch.Tensor:
        """The local piece of `full` (a new contiguous tensor)."""
        import torch

        pieces = [full[slices(box)] for box in self.boxes]
        return pieces[0].clone() if len(pieces) == 1 else torch.cat(pieces, dim=self.dim or 0)

    def put(self, local: torch.Tensor, full: torch.Tensor) -> None:
        """Write the local piece into its boxes of `full`; the inverse of `take`."""
        for box, local_box in zip(self.boxes, self.local_boxes(), strict=True):
            full[slices(box)] = local[slices(local_box)]


def slices(box: Box) -> tuple[slice, ...]:
    """A box as an index."""
    return tuple(slice(start, stop) for start, stop in box)


def whole(shape: tuple[int, ...]) -> Placement:
    """The placement of a tensor that every tp rank holds whole."""
    return Placement(full_shape=shape, boxes=(tuple((0, size) for size in shape),))


def split_evenly(size: int, tp: int, rank: int, *, blocks: int = 1) -> tuple[tuple[int, int], ...]:
    """The rank's (start, stop) ranges of a dim made of `blocks` equal projections; each is cut in `tp` equal parts.

    GPT-2's fused projection is all of q, then all of k, then all of v (`blocks=3`): a rank needs its heads from each.
    """
    assert size % (blocks * tp) == 0, f"a dim of {size} has no {blocks} blocks of {tp} equal parts"
    block, part = size // blocks, size // (blocks * tp)
    return tuple((index * block + rank * part, index * block + (rank + 1) * part) for index in range(blocks))


def split_key_values(size: int, tp: int, rank: int, *, heads: int) -> tuple[tuple[int, int], ...]:
    """The rank's range of a dim made of `heads` key-value heads: an equal part, or one head where tp exceeds them.

    tp divides `heads` or is a multiple of it; in the latter case tp / heads neighbouring ranks have the same range.
    """
    if heads % tp == 0:
        return split_evenly(size, tp, rank)
    assert tp % heads == 0, f"{heads} key-value heads on {tp} ranks"
    head, width = rank * heads // tp, size // heads
    return ((head * width, (head + 1) * width),)


def split_vocabulary(size: int, tp: int, rank: int) -> tuple[tuple[int, int], ...]:
    """The rank's range of the vocabulary; any size, so that the parts differ by at most one row."""
    return ((rank * size // tp, (rank + 1) * size // tp),)


def split_placement(
    full_shape: tuple[int, ...], dim: int, ranges: tuple[tuple[int, int], ...], *, copies: int = 1
) -> Placement:
    """The placement of a tensor cut along `dim` into `ranges`, which `copies` neighbouring tp ranks share."""
    whole_box = [(0, size) for size in full_shape]
    boxes = tuple(tuple([*whole_box[:dim], bounds, *whole_box[dim + 1 :]]) for bounds in ranges)
    return Placement(full_shape=full_shape, boxes=boxes, dim=dim, copies=copies)
