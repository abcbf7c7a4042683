"""Runs in bf16 from the command line: as good as fp32's, resumed to the bit, merged in bf16. Minutes long."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

STEPS = ["train.steps=50", "train.eval_every=0", "checkpoint.every=0"]
LAYOUTS = {"1-1-1": [], "2-2-1": ["parallel.tp=2", "parallel.pp=2"]}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_bf16_runs_learn_as_fp32_does_and_go_on_exactly(shell, small):
    run = [*small, *STEPS]
    shell("train", *run, "run.name=fp32", timeout=300)
    fp32 = shell.losses("fp32")
    assert fp32[-1] < fp32[0] - 0.5
    for mode in ("master", "autocast"):
        for name, layout in LAYOUTS.items():
            bf16 = [*run, *layout, "train.precision=bf16", f"train.bf16_mode={mode}"]
            shell("train", *bf16, f"run.name={mode}-{name}", timeout=300)
            assert shell.losses(f"{mode}-{name}") == pytest.approx(fp32, rel=0.01)
    bf16 = [*run, *LAYOUTS["2-2-1"], "train.precision=bf16", "run.name=parts"]
    shell("train", *bf16, "train.stop_after=20", timeout=300)
    shell("train", *bf16, timeout=300)
    assert shell.losses("parts") == shell.losses("master-2-2-1")
    shell("merge-checkpoint", "input=runs/parts", "output=merged")
    assert json.loads((shell.folder / "merged" / "config.json").read_text())["dtype"] == "bfloat16"
    model, report = AutoModelForCausalLM.from_pretrained(shell.folder / "merged", output_loading_info=True)
    assert model.dtype == torch.bfloat16 and not any(report.values())
    assert "nothing to do" in shell("train", *run, "train.precision=fp32", "run.name=parts")
