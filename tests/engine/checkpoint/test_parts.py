"""A flat range of a local tensor as boxes of the full one: each element once, at its place."""

from math import prod

import torch
from hypothesis import given
from hypothesis import strategies as st

from gooseslo.engine.checkpoint.parts import boxes_of_range, rectangles
from gooseslo.parallel.tensor.layouts import slices, split_evenly, split_placement, whole

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


@given(SHAPES, st.data())
def test_rectangles_hold_the_range_in_order(shape, data):
    total = prod(shape)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    numbers = torch.arange(total).view(shape)
    found = [numbers[slices(box)].reshape(-1) for box in rectangles(shape, start, stop)]
    assert torch.cat([torch.empty(0, dtype=torch.int64), *found]).tolist() == list(range(start, stop))
    assert len(found) <= 2 * len(shape) - 1


@given(st.data())
def test_ranges_of_every_placement_cover_the_full_tensor(data):
    dim = data.draw(st.integers(0, 1))
    tp = data.draw(st.sampled_from([1, 2]))
    full_shape = (12, 5) if dim == 0 else (5, 12)
    numbers = torch.arange(60).view(full_shape)
    seen = torch.full(full_shape, -1)
    for rank in range(tp):
        ranges = split_evenly(12, tp, rank, blocks=3)
        placement = whole(full_shape) if tp == 1 else split_placement(full_shape, dim, ranges)
        local = placement.take(numbers).reshape(-1)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(local)), max_size=4)))
        for start, stop in zip([0, *cuts], [*cuts, len(local)]):
            for view, place in boxes_of_range(local[start:stop], start, placement):
                assert (place.take(seen) == -1).all() and tuple(view.shape) == place.local_shape
                place.put(view, seen)
    assert torch.equal(seen, numbers)


def test_the_boxes_are_views():
    flat = torch.zeros(7)
    for view, _ in boxes_of_range(flat, 2, whole((3, 4))):
        view.fill_(1)
    assert flat.tolist() == [1.0] * 7
