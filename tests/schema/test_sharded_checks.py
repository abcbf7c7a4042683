"""What ZeRO's stages 2 and 3 cannot run with is refused from the configuration alone, with the nearest that runs."""

import pytest
from test_checks import job_with, messages

RUNS = ["auto", "gpipe", "1f1b", "looped_bfs", "interleaved_1f1b"]


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("schedule", ["interleaved_zb", "zbv", "dualpipev"])
def test_a_schedule_that_splits_the_backward_pass(stage, schedule):
    keys = {"parallel__pp": 2, "parallel__schedule": schedule, "train__micro_batch_size": 1}
    (message,) = messages(job_with(zero__stage=stage, **keys))
    assert message.startswith(f"parallel.schedule={schedule}: ")
    assert f"zero.stage={stage}" in message
    assert "nearest: parallel.schedule=interleaved_1f1b, or zero.stage=1" in message
    for allowed in ({"zero__stage": 1}, {"parallel__pp": 1}, {"parallel__schedule": "interleaved_1f1b"}):
        assert messages(job_with(**{"zero__stage": stage, **keys, **allowed})) == []


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("schedule", RUNS)
def test_other_schedules_are_not_refused(stage, schedule):
    assert messages(job_with(zero__stage=stage, parallel__pp=2, parallel__schedule=schedule)) == []


@pytest.mark.parametrize("stage", [2, 3])
def test_offload_is_stage_1s(stage):
    (message,) = messages(job_with(zero__stage=stage, zero__offload=True))
    assert message.startswith("zero.offload=true: ") and "zero.stage=1, or leave it out" in message


@pytest.mark.parametrize("size", [0, -2])
def test_ranks_that_share_are_at_least_one(size):
    job = job_with(zero__stage=1, zero__shard_size=size, parallel__dp=2)
    assert messages(job) == [f"zero.shard_size={size}: must be at least 1"]


@pytest.mark.parametrize("stage", [-1, 4])
def test_there_are_four_stages(stage):
    (message,) = messages(job_with(zero__stage=stage))
    assert message == f"zero.stage={stage}: must be 0, 1, 2 or 3"


def test_a_file_that_splits_the_backward_pass(tmp_path):
    keys = {"parallel__pp": 2, "zero__stage": 3, "train__global_batch_size": 2}
    for text, refused in (("0F0,,0I0,0W0\n,1F0,1I0,1W0\n", True), ("0F0,,,0B0\n,1F0,1B0,\n", False)):
        path = tmp_path / "table.csv"
        path.write_text(text)
        found = messages(job_with(parallel__schedule=str(path), **keys))
        assert any("computes weight gradients apart, which zero.stage=3" in line for line in found) == refused
        assert refused or not found
