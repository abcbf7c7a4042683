"""What a continued run refuses, and how a save that fails ends: nothing of an earlier run is ever lost or mixed."""

import shutil
from pathlib import Path

import pytest
from command_line import SMALL, Shell

ONE = ["train.steps=4", "checkpoint.every=2", "train.eval_batches=0"]
TEXT = ["data=text", "data.train=a.txt", "data.vocab_size=270"]


def with_text(shell):
    """Write the text that the runs are trained on."""
    (shell.folder / "a.txt").write_text("goose honk pond egg reed wing nest\n" * 400, encoding="utf-8")
    return shell


@pytest.fixture
def options(small):
    return [key for key in small if "vocab" not in key] + TEXT + ONE


@pytest.fixture(scope="module")
def half(tmp_path_factory, cache):
    """The folder of a run of 2 of 4 steps, to be copied."""
    shell = with_text(Shell(tmp_path_factory.mktemp("half"), cache))
    small = [key for key in SMALL if "vocab" not in key]
    shell("train", *small, *TEXT, *ONE, "run.name=run", "train.stop_after=2")
    return shell.folder / "runs"


@pytest.fixture
def begun(shell, half):
    """A run of 2 of 4 steps."""
    shutil.copytree(half, shell.folder / "runs")
    return with_text(shell)


def files_of(shell):
    return {path for path in (shell.folder / "runs").rglob("*") if path.is_file()}


def test_changed_text_is_refused(begun, options):
    (begun.folder / "a.txt").write_text("other words than before\n" * 900, encoding="utf-8")
    before = files_of(begun)
    error = begun("train", *options, "run.name=run", code=2)
    assert error.startswith("data: the text or the tokenizer is not that of")
    assert files_of(begun) == before and len(begun.losses("run")) == 2


def test_a_step_folder_of_another_run_by_a_relative_path(begun, options):
    step = "checkpoint.resume=runs/run/checkpoints/step-00000002"
    out = begun("train", *options, "run.name=other", step)
    assert "runs/run/checkpoints/step-00000002 (saved at tp=1 pp=1 dp=1)" in out
    assert [record["step"] for record in begun.metrics("other")] == [3, 4]
    error = begun("train", *options, "run.name=third", step, "run.seed=7", code=2)
    assert error.startswith("run.seed=7: the run has 0")
    assert not (begun.folder / "runs" / "third").exists()


@pytest.mark.parametrize("harm", ["truncated", "edited", "without config", "of another model"])
def test_a_damaged_or_foreign_step_folder_is_found_before_anything_is_made(begun, options, harm):
    step = begun.folder / "runs" / "run" / "checkpoints" / "step-00000002"
    further = []
    if harm == "truncated":
        file = step / "model_tp=0_pp=0.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
    elif harm == "edited":
        manifest = step / "manifest.json"
        manifest.write_text(manifest.read_text().replace("float32", "float64"))
    elif harm == "without config":
        (begun.folder / "runs" / "run" / "config.yaml").unlink()
    else:
        config = begun.folder / "runs" / "run" / "config.yaml"
        config.write_text(config.read_text().replace("n_embd: 48", "n_embd: 24"))
        further = ["model.config.n_embd=24"]
    error = begun("train", *options, *further, "run.name=new", f"checkpoint.resume={step}", code=2)
    assert str(step) in error or "config.yaml" in error
    assert "Traceback" not in error and len(error.splitlines()) <= 5
    assert not (begun.folder / "runs" / "new").exists()


def test_never_does_not_overwrite(begun, options):
    error = begun("train", *options, "run.name=run", "checkpoint.resume=never", code=2)
    assert "checkpoint.resume=never" in error and len(begun.losses("run")) == 2


def test_a_failed_save_is_a_failure_at_run_time(begun, options):
    """`latest` cannot be written: exit code 1, the cause's traceback, and the earlier step still there."""
    checkpoints = begun.folder / "runs" / "run" / "checkpoints"
    (checkpoints / "latest").unlink()
    (checkpoints / "latest" / "x").mkdir(parents=True)
    error = begun("train", *options, "run.name=run", "parallel.pp=2", code=1)
    assert "Traceback" in error and "not saved" in error
    assert error.strip().splitlines()[-1].startswith("rank 0 ")
    assert (checkpoints / "step-00000002" / "manifest.json").exists()


def test_a_newest_checkpoint_that_is_broken_is_said_to_be_passed_over(begun, options):
    checkpoints = begun.folder / "runs" / "run" / "checkpoints"
    shutil.copytree(checkpoints / "step-00000002", checkpoints / "step-00000003")
    (checkpoints / "latest").write_text("step-00000003\n")
    file = checkpoints / "step-00000003" / "model_tp=0_pp=0.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    words = "warning: step-00000002 is used, not step-00000003, which latest names: "
    process = begun.start("merge-checkpoint", "input=runs/run", "output=merged")
    out, error = process.communicate(timeout=60)
    assert process.returncode == 0 and error.startswith(words) and "model_tp=0_pp=0.safetensors" in error
    assert out == "runs/run/checkpoints/step-00000002 -> merged\n"
    assert words in begun("train", *options, "run.name=run")


def test_a_stop_that_is_behind_says_so(begun, options):
    assert "nothing to do" in begun("train", *options, "run.name=run", "train.stop_after=1")


def test_a_run_that_never_saved_is_not_continued_as_another(begun, options):
    shutil.rmtree(begun.folder / "runs" / "run" / "checkpoints")
    assert "run.seed=3" in begun("train", *options, "run.name=run", "run.seed=3", code=2)


def test_a_run_of_an_older_version_goes_on_at_another_layout(shell):
    """Its checkpoint and the name that it gives its data were written before data=indexed was; so was the expectation.

    The folder holds step 2 of 4 of a run in fp64; the version that made it went on from there with these losses.
    """
    older = Path(__file__).parent / "older_run"
    shutil.copytree(older / "run", shell.folder / "runs" / "older")
    shutil.copy(older / "geese.txt", shell.folder)
    given = (older / "run" / "overrides.txt").read_text().split()
    options = [option for option in given if not option.startswith(("train.stop_after", "parallel.dp"))]
    shell("train", *options, "parallel.dp=2", "train.micro_batch_size=1")
    assert [record["step"] for record in shell.metrics("older")] == [1, 2, 3, 4]
    assert shell.losses("older")[2:] == pytest.approx([5.608811344432794, 5.597500983483453], abs=1e-9)
