"""Parts of weights as a checkpoint stores them: a range of elements is a few boxes of the full tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from torch import Tensor

from gooseslo.engine.checkpoint.manifest import NUMBER, intersect, tensor_name
from gooseslo.parallel.data.strategy import Part
from gooseslo.parallel.tensor.layouts import Box, Placement, slices, whole

PlacedTensors = dict[str, tuple[Tensor, Placement]]


class PartTable:
    """Local tensors by the key that they are stored under, each with its place in the full tensor."""

    def __init__(self, placements: Mapping[str, Placement]):
        """`placements`: of this rank's whole weights."""
        self.placements = placements
        self.tensors: PlacedTensors = {}

    def add(self, part: Part, tensor: Tensor, *, what: str = "") -> None:
        """The part itself, or `what` is kept for it: of the part's shape, or whole in a shape of its own."""
        placement = self.placements[part.name]
        name = f"{what}/{part.name}" if what else part.name
        if tensor.shape != part.parameter.shape:
            is_cut = part.start is not None or placement.dim is not None
            assert tensor.dim() == 0 or not is_cut, f"{name}: {tuple(tensor.shape)} of a part of the weight"
            self.tensors[name] = (tensor, whole(tuple(tensor.shape)))
            return
        if part.start is None:
            self.tensors[name] = (tensor, placement)
            return
        number = sum(tensor_name(key) == name for key in self.tensors)
        for view, place in boxes_of_range(tensor, part.start, placement):
            self.tensors[f"{name}{NUMBER}{number}"] = (view, place)
            number += 1


def boxes_of_range(flat: Tensor, start: int, placement: Placement) -> Iterator[tuple[Tensor, Placement]]:
    """Views of a flat range of a local tensor, from its element `start` on, one for each box of the full tensor."""
    for rectangle in rectangles(placement.local_shape, start, start + flat.numel()):
        shape = tuple(stop - begin for begin, stop in rectangle)
        first = _offset(placement.local_shape, rectangle) - start
        block = flat[first : first + prod(shape)].view(shape)
        for box, local_box in zip(placement.boxes, placement.local_boxes(), strict=True):
            common = intersect(rectangle, local_box)
            if common is not None:
                full = tuple((low + a - x, low + b - x) for (a, b), (x, _), (low, _) in zip(common, local_box, box))
                inside = tuple((a - x, b - x) for (a, b), (x, _) in zip(common, rectangle))
                yield block[slices(inside)], Placement(full_shape=placement.full_shape, boxes=(full,))


def rectangles(shape: tuple[int, ...], start: int, stop: int) -> list[Box]:
    """The boxes that hold the elements from `start` to `stop` of a tensor, row by row; at most two a dim, less one."""
    if start >= stop:
        return []
    if len(shape) <= 1:
        return [((start, stop),) if shape else ()]
    row = prod(shape[1:])
    first, last = -(-start // row), stop // row
    if first > last:  # within one row
        return _in_row(shape, last, start, stop)
    head = _in_row(shape, first - 1, start, first * row)
    middle = [((first, last), *((0, size) for size in shape[1:]))] if first < last else []
    return [*head, *middle, *_in_row(shape, last, last * row, stop)]


def _in_row(shape: tuple[int, ...], index: int, start: int, stop: int) -> list[Box]:
    row = prod(shape[1:])
    return [((index, index + 1), *box) for box in rectangles(shape[1:], start - index * row, stop - index * row)]


def _offset(shape: tuple[int, ...], box: Box) -> int:
    """Of a box's first element."""
    offset = 0
    for size, (begin, _) in zip(shape, box):
        offset = offset * size + begin
    return offset
