"""ZeRO by DeepSpeed from the command line: as its page says, quietly, and to be continued by the torch back end."""

import os
from pathlib import Path

import pytest
from documented import commands
from processes import running

NOTHING_STARTED = ["parallel.pp=2", "parallel.dp=2", "zero.stage=2", "zero.backend=deepspeed"]
STEPS = [
    "train.steps=4",
    "train.eval_every=2",
    "checkpoint.every=0",
    "train.global_batch_size=4",
    "model.config.vocab_size=300",
]
# So that a micro-batch is one of two.
WATCHED = ["train.micro_batch_size=1", "debug.check_sync=true", "logging.trace=true"]


def of_deepspeed():
    command, _ = (one for one in commands("docs/zero.md", "gooseslo") if "zero.backend=deepspeed" in one.words)
    return list(command.words[1:])


def in_folder(folder):
    """Processes that work in the folder, whoever started them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd").startswith(str(folder)) and running(int(process.name)):
                found.append(process.name)
        except OSError:
            continue  # it has ended, or is another user's
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_documented_run_goes_on_by_torch_as_if_torch_had_begun_it(shell, small):
    run = [*small, *STEPS, *WATCHED]
    before = set(os.listdir("/dev/shm"))
    process = shell.start(*of_deepspeed(), *run, "train.stop_after=2", "run.name=both")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0 and err == "", err
    said = [line.lower() for line in out.splitlines() if not line.startswith("resume ")]  # the command, as typed
    for word in ("deepspeed", "warning", "[info]", "traceback"):
        assert not [line for line in said if word in line], out
    assert len(shell.losses("both")) == 2
    for rank in (0, 1):
        assert (shell.folder / "runs" / "both" / "trace" / f"rank-{rank}.json").read_text().count("\n") > 5
    assert set(os.listdir("/dev/shm")) <= before and not in_folder(shell.folder) and not shell.left_behind

    torch = ["train", "model=gpt2", "parallel.dp=2", "zero.backend=torch", *run]
    shell(*torch, "zero.stage=3", "run.name=both", timeout=300)
    shell(*torch, "zero.stage=2", "run.name=alone", timeout=300)
    for kind in ("train", "eval"):
        alone, both = (shell.metrics(name, kind) for name in ("alone", "both"))
        assert [line["step"] for line in both] == [line["step"] for line in alone] and alone
        assert [line["loss"] for line in both] == pytest.approx([line["loss"] for line in alone], rel=1e-5)


def test_stage_2_of_a_pipeline_is_refused_before_anything_starts(shell, small):
    text = shell("train", *small, *NOTHING_STARTED, "run.name=refused", code=2)
    assert "zero.stage=2: " in text and "parallel.pp=2" in text and "zero.backend=torch" in text
    assert "Traceback" not in text and not (shell.folder / "runs").exists() and not shell.left_behind
