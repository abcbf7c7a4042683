"""Every schedule against one process of plain transformers, with as many stages a rank as it has."""

import pytest

from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case, assert_parity, run_on_ranks, run_reference

# (schedule, virtual stages)
SCHEDULES = [
    ("gpipe", 1),
    ("1f1b", 1),
    ("looped_bfs", 2),
    ("interleaved_1f1b", 2),
    ("interleaved_zb", 2),
    ("zbv", 2),
    ("dualpipev", 2),
]
LAYERS = {"gpt2": "n_layer", "llama": "num_hidden_layers"}


def case(schedule, virtual_stages, *, family="gpt2", tp=1, pp=2, dp=1, **changes):
    layers = sum(changes.get("partition", [pp * virtual_stages]))
    fields = tiny_fields(family, **{LAYERS[family]: layers})
    samples = 2 * 2 * pp * dp  # as many micro-batches as dualpipev asks for
    options = {"samples": samples, "sequence_length": 12, "schedule": schedule, "virtual_stages": virtual_stages}
    return Case(architecture=family, fields=fields, tp=tp, pp=pp, dp=dp, **{**options, **changes})


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize(("schedule", "virtual_stages"), SCHEDULES)
def test_two_ranks_fp64(schedule, virtual_stages, family):
    given = case(schedule, virtual_stages, family=family, micro_batch_size=1)
    assert_parity(run_reference(given), run_on_ranks(given), loss=1e-12, tensors=1e-9)


LAYOUTS = [
    # (schedule, virtual stages, tp, pp, dp, what else)
    ("zbv", 2, 2, 2, 1, {}),
    ("zbv", 2, 1, 2, 2, {"clip_grad_norm": 0.1}),
    ("dualpipev", 2, 2, 2, 1, {"sequence_parallel": True}),
    ("interleaved_zb", 2, 1, 2, 2, {"ignore_some_labels": True}),
    ("interleaved_1f1b", 3, 1, 2, 1, {"documents": True}),
    ("interleaved_1f1b", 2, 2, 2, 1, {"partition": [1, 2, 1, 2]}),
    ("looped_bfs", 3, 1, 2, 2, {}),
    ("interleaved_zb", 1, 1, 2, 1, {}),
]


@pytest.mark.parametrize("family", ["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("schedule", "virtual_stages", "tp", "pp", "dp", "changes"), LAYOUTS)
def test_other_layouts_fp64(schedule, virtual_stages, tp, pp, dp, changes, family):
    sizes = {"tp": tp, "pp": pp, "dp": dp, "micro_batch_size": 1}
    given = case(schedule, virtual_stages, family=family, **sizes, **changes)
    assert_parity(run_reference(given), run_on_ranks(given), loss=1e-12, tensors=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize(("schedule", "virtual_stages"), SCHEDULES)
def test_four_ranks_fp64(schedule, virtual_stages, family):
    given = case(schedule, virtual_stages, family=family, pp=4, micro_batch_size=1)
    assert_parity(run_reference(given), run_on_ranks(given), loss=1e-12, tensors=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize(("schedule", "virtual_stages"), SCHEDULES)
def test_twenty_losses_fp32(schedule, virtual_stages, family):
    options = {"precision": "fp32", "optimizer": "adamw", "steps": 20}
    given = case(schedule, virtual_stages, family=family, micro_batch_size=1, **options)
    expected, actual = run_reference(given), run_on_ranks(given)
    assert actual.losses == pytest.approx(expected.losses, rel=1e-5)
