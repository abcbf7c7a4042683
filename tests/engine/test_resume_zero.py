"""A run under ZeRO that stops and goes on, with the same sharing or another: moments and masters move exactly."""

import pytest
from test_resume_precision import case_of, run, step_folder

from gooseslo.engine.checkpoint.manifest import Manifest

LAYOUTS = [
    {"dp": 2, "zero_stage": 1},
    {"dp": 2, "zero_stage": 0},
    {"dp": 1, "zero_stage": 0},
    {"tp": 2, "dp": 2, "zero_stage": 1},
    {"pp": 2, "dp": 2, "zero_stage": 1, "zero_offload": True},
    {"dp": 4, "zero_stage": 1, "zero_shard_size": 2},
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Losses of a run in one process that is not stopped, by precision."""
    return {
        precision: run(case_of(precision), tmp_path_factory.mktemp("whole") / precision)[0]
        for precision in ("fp64", "bf16")
    }


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Run folders at step 3 of 6, saved under the first layout, by precision."""
    folders = {}
    for precision in ("fp64", "bf16"):
        folders[precision] = tmp_path_factory.mktemp("begun") / precision
        run(case_of(precision, **LAYOUTS[0]), folders[precision], stop_after=3)
    return folders


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("precision", "tolerance"), [("fp64", 1e-12), ("bf16", 2e-3)])
def test_it_goes_on_as_one_process(begun, whole, tmp_path, layout, precision, tolerance):
    """In bf16 within the rounding of sums that another layout adds in another order."""
    losses, _ = run(case_of(precision, **layout), tmp_path / "run", start=step_folder(begun[precision], 3))
    assert losses == pytest.approx(whole[precision][3:], rel=tolerance)


@pytest.mark.parametrize("layout", LAYOUTS[3:])
def test_what_other_sharings_save_one_process_reads(whole, tmp_path, layout):
    run(case_of("fp64", **layout), tmp_path / "run", stop_after=3)
    losses, _ = run(case_of("fp64"), tmp_path / "alone", start=step_folder(tmp_path / "run", 3))
    assert losses == pytest.approx(whole["fp64"][3:], rel=1e-12)


def test_each_rank_writes_its_own_shard(begun):
    manifest = Manifest.read(step_folder(begun["bf16"], 3))
    assert {piece.file for entry in manifest.optimizer.values() for piece in entry.pieces} == {
        "optimizer_tp=0_pp=0_dp=0.safetensors",
        "optimizer_tp=0_pp=0_dp=1.safetensors",
    }
    assert {name.partition("/")[0] for name in manifest.optimizer} == {"master", "exp_avg", "exp_avg_sq"}
    sizes = [entry.bytes for name, entry in manifest.files.items() if name.startswith("optimizer")]
    assert max(sizes) < 0.6 * sum(sizes)
