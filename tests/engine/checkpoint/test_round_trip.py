"""Saved in one layout, loaded in another: the same tensors, each stored once, only slices read."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gooseslo.engine.checkpoint.folders import read_state
from gooseslo.engine.checkpoint.load import load_tensors
from gooseslo.engine.checkpoint.manifest import Manifest
from gooseslo.engine.checkpoint.save import Coordinates, LocalState, save_step
from gooseslo.errors import CheckpointError
from gooseslo.parallel.tensor.layouts import Placement, whole


def save_alone(folder, tensors, **options):
    options = {"coordinates": Coordinates(), "topology": {"tp": 1, "pp": 1, "dp": 1}, "state": {}} | options
    return save_step(folder, 1, local=LocalState(tensors=tensors), **options)


def check_loads(tiny, folder, *, tp_size, pp_size):
    for kind, full in ((False, tiny.full()), (True, tiny.moments())):
        for pp in range(pp_size):
            for tp in range(tp_size):
                held = tiny.held(full, tp=tp, tp_size=tp_size, pp=pp, pp_size=pp_size)
                wanted = {name: (torch.full_like(t, -7.0), place) for name, (t, place) in held.items()}
                load_tensors(folder, wanted, optimizer=kind)
                for name, (tensor, _) in wanted.items():
                    assert torch.equal(tensor, held[name][0]), name


@pytest.mark.parametrize(("tp", "pp", "dp"), [(1, 1, 1), (2, 1, 1), (1, 2, 2), (3, 1, 1), (2, 2, 1), (4, 1, 1)])
@pytest.mark.parametrize("tie", [True, False])
def test_any_layout_loads_any_other(make_gpt2, save_tiny, tmp_path, tp, pp, dp, tie):
    tiny = make_gpt2(tie=tie)
    folder = save_tiny(tiny, tmp_path, tp=tp, pp=pp, dp=dp)
    for tp_size, pp_size in [(1, 1), (2, 1), (3, 2), (4, 1), (1, 4)]:
        check_loads(tiny, folder, tp_size=tp_size, pp_size=pp_size)
    manifest = Manifest.read(folder)
    assert set(manifest.tensors) == set(tiny.full()) and manifest.topology == {"tp": tp, "pp": pp, "dp": dp}
    assert read_state(folder) == {"step": 1}
    model_files = {f"model_tp={t}_pp={p}.safetensors" for t in range(tp) for p in range(pp)}
    assert {name for name in manifest.files if name.startswith("model_")} == model_files
    assert {p.name for p in folder.iterdir()} == {*manifest.files, "manifest.json"}
    stored = sum((folder / name).stat().st_size for name in model_files)
    size = sum(t.numel() * t.element_size() for t in tiny.full().values())
    assert size < stored < size + 8192 * len(model_files)  # headers aside, each tensor once


@st.composite
def two_cuts(draw):
    """A shape and two ways to cut it along some dim into one or more boxes each for up to 4 ranks."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))

    def cut():
        dim = draw(st.integers(0, len(shape) - 1))
        inner = draw(st.sets(st.integers(1, shape[dim] - 1))) if shape[dim] > 1 else set()
        edges = [0, *sorted(inner), shape[dim]]
        spans = list(itertools.pairwise(edges))
        owners = [draw(st.integers(0, 3)) for _ in spans]
        placements = []
        for rank in set(owners):
            own = draw(st.permutations([span for span, owner in zip(spans, owners, strict=True) if owner == rank]))
            boxes = [tuple(span if d == dim else (0, size) for d, size in enumerate(shape)) for span in own]
            placements.append(Placement(full_shape=shape, boxes=tuple(boxes), dim=dim))
        return placements

    return shape, cut(), cut()


@settings(deadline=None, max_examples=60)
@given(cuts=two_cuts())
def test_random_boxes(cuts, tmp_path_factory):
    shape, saved, loaded = cuts
    full = torch.randn(shape)
    # One rank that holds several placements under names of their own would not share a tensor: save the parts as one.
    boxes = tuple(box for placement in saved for box in placement.boxes)
    together = Placement(full_shape=shape, boxes=boxes, dim=saved[0].dim)
    folder = save_alone(tmp_path_factory.mktemp("boxes"), {"w": (together.take(full), together)})
    for placement in [*loaded, *saved, whole(shape)]:
        target = torch.empty(placement.local_shape)
        load_tensors(folder, {"w": (target, placement)})
        assert torch.equal(target, placement.take(full))


def test_scalars_and_integers_and_views_of_one_buffer(tmp_path):
    buffer = torch.arange(12, dtype=torch.float32)
    tensors = {
        "a": (buffer[:6].view(2, 3), whole((2, 3))),
        "b": (buffer[6:].view(3, 2).t(), whole((2, 3))),
        "step": (torch.tensor(7), whole(())),
    }
    folder = save_alone(tmp_path, tensors)
    wanted = {name: (torch.zeros_like(t, memory_format=torch.contiguous_format), p) for name, (t, p) in tensors.items()}
    load_tensors(folder, wanted)
    assert all(torch.equal(wanted[name][0], tensors[name][0]) for name in tensors)


def test_parameters_are_filled_in_place_and_precision_may_change(tmp_path):
    full = torch.randn(4, 4, dtype=torch.float64)
    folder = save_alone(tmp_path, {"w": (full, whole((4, 4)))})
    parameter = torch.nn.Parameter(torch.zeros(4, 4, dtype=torch.bfloat16))
    load_tensors(folder, {"w": (parameter, whole((4, 4)))})
    assert torch.equal(parameter, full.to(torch.bfloat16)) and parameter.requires_grad


def test_refusals(tmp_path):
    folder = save_alone(tmp_path, {"w": (torch.zeros(4, 4), whole((4, 4)))})
    with pytest.raises(CheckpointError, match="holds no v"):
        load_tensors(folder, {"v": (torch.zeros(4, 4), whole((4, 4)))})
    with pytest.raises(CheckpointError, match=r"shape \[4, 4\], the model wants \[5, 4\]"):
        load_tensors(folder, {"w": (torch.zeros(5, 4), whole((5, 4)))})
    with pytest.raises(CheckpointError, match="float32, the model wants int64"):
        load_tensors(folder, {"w": (torch.zeros(4, 4, dtype=torch.int64), whole((4, 4)))})
    with pytest.raises(CheckpointError, match="holds no exp_avg/w"):
        load_tensors(folder, {"exp_avg/w": (torch.zeros(4, 4), whole((4, 4)))}, optimizer=True)


def test_a_rank_that_holds_a_copy_writes_only_what_lower_ranks_lack(run_ranks, tmp_path):
    """Two ranks share a box, as when key-value heads are fewer than tp ranks; the second has one more of its own."""
    full = torch.arange(12.0).view(6, 2)

    def held(rank):
        rows = [(0, 2), (2, 4)] if rank == 0 else [(2, 4), (4, 6)]
        place = Placement(full_shape=(6, 2), boxes=tuple((span, (0, 2)) for span in rows), dim=0)
        return {"kv": (place.take(full), place)}

    def save(rank):
        at = Coordinates(tp=rank)
        return save_alone(tmp_path, held(rank), coordinates=at, topology={"tp": 2, "pp": 1, "dp": 1})

    folder = run_ranks(save, 2)[0]
    assert [len(p.box) and p.box[0] for p in Manifest.read(folder).tensors["kv"].pieces] == [(0, 2), (2, 4), (4, 6)]
    target = torch.zeros(6, 2)
    load_tensors(folder, {"kv": (target, whole((6, 2)))})
    assert torch.equal(target, full)
