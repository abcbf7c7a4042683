"""What a pipeline runs under which back end of ZeRO: DeepSpeed's stages 2 and 3 are refused, torch's match plain dp."""

from dataclasses import replace

import pytest
from test_deepspeed import CLOSE
from test_deepspeed import case as deepspeed_case

from gooseslo.schema.checks import check_train
from gooseslo.testing.parity import assert_parity, run_on_ranks

PIPELINE = {"pp": 2}


@pytest.mark.parametrize("stage", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_stages_2_and_3_of_a_pipeline_are_refused_under_deepspeed_and_run_under_torch(stage):
    refused = deepspeed_case(stage, PIPELINE)
    (fault,) = check_train(refused.job(), num_devices=0)
    assert (fault.key, fault.value) == ("zero.stage", stage)
    assert "parallel.pp=2" in fault.rule and "zero.backend=torch" in fault.way_out

    given = replace(refused, zero_backend="torch", zero_deepspeed={})
    assert check_train(given.job(), num_devices=0) == []
    plain = replace(given, pp=1, schedule="auto", zero_stage=0)
    assert_parity(run_on_ranks(plain), run_on_ranks(given), **CLOSE)


def test_the_neighbours_are_not_refused():
    """They run: test_fp32 of test_deepspeed compares both with one process."""
    for stage, sizes in ((1, PIPELINE), (2, {"pp": 1})):
        assert check_train(deepspeed_case(stage, sizes).job(), num_devices=0) == []
