"""A run goes on between the two back ends of ZeRO, both ways: moments and weights move by name."""

import pytest
from test_resume_precision import case_of, run, step_folder

SHARE_ALL = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
BY_DEEPSPEED = {"dp": 2, "zero_backend": "deepspeed"}
LAYOUTS = [
    {**BY_DEEPSPEED, "zero_stage": 2},
    {**BY_DEEPSPEED, "zero_stage": 1, "pp": 2},
    {**BY_DEEPSPEED, "zero_stage": 3, "zero_deepspeed": SHARE_ALL},
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(case_of("fp32"), tmp_path_factory.mktemp("whole") / "run")[0]


@pytest.mark.parametrize("layout", [*(pytest.param(each, marks=pytest.mark.slow) for each in LAYOUTS[:2]), LAYOUTS[2]])
def test_there_and_back(whole, tmp_path, layout):
    """Three updates by torch, three by DeepSpeed; and the other way round."""
    torch_layout = {"dp": 2, "zero_stage": 1}
    for first, second in ((torch_layout, layout), (layout, torch_layout)):
        folder = tmp_path / first.get("zero_backend", "torch")
        run(case_of("fp32", **first), folder, stop_after=3)
        losses, _ = run(case_of("fp32", **second), folder.with_suffix(".on"), start=step_folder(folder, 3))
        assert losses == pytest.approx(whole[3:], rel=1e-5)
