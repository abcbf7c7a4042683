"""ZeRO's stages 2 and 3 from the command line: a run that changes stage and layout is the run of one process."""

import pytest
from transformers import AutoModelForCausalLM

STEPS = ["train.steps=6", "train.eval_every=3", "checkpoint.every=0", "train.micro_batch_size=1"]
FIRST = ["zero.stage=3", "parallel.pp=2", "parallel.dp=2", "parallel.schedule=interleaved_1f1b"]
THEN = ["zero.stage=2", "parallel.tp=2", "parallel.dp=2", "train.activation_checkpointing=full"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_changes_its_stage_and_merges(shell, small):
    run = [*small, *STEPS]
    shell("train", *run, "run.name=alone", timeout=300)
    shell("train", *run, *FIRST, "train.stop_after=3", "run.name=shared", timeout=300)
    shell("train", *run, *THEN, "run.name=shared", timeout=300)
    for kind in ("train", "eval"):
        alone, shared = (shell.metrics(name, kind) for name in ("alone", "shared"))
        assert [line["step"] for line in shared] == [line["step"] for line in alone]
        assert [line["loss"] for line in shared] == pytest.approx([line["loss"] for line in alone], rel=1e-5)
    models = []
    for name in ("alone", "shared"):
        shell("merge-checkpoint", f"input=runs/{name}", f"output={name}")
        models.append(AutoModelForCausalLM.from_pretrained(shell.folder / name).state_dict())
    for name, tensor in models[0].items():
        assert (tensor - models[1][name]).norm() <= 1e-4 * tensor.norm() + 1e-6, name


def test_a_schedule_that_cannot_is_refused(shell, small):
    schedule = ["parallel.pp=2", "parallel.schedule=zbv", "train.micro_batch_size=1", "run.name=refused"]
    text = shell("train", *small, *schedule, "zero.stage=3", code=2)
    assert "parallel.schedule=zbv" in text and "zero.stage=3" in text and "zero.stage=1" in text
    assert not (shell.folder / "runs").exists() and "Traceback" not in text
