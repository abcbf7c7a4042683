"""Ranks that torchrun, DeepSpeed's launcher or srun started: the same run, one set of words, the right exit codes."""

import os
import signal
import sys
from pathlib import Path

import pytest
from conftest import SMALL, Shell
from processes import children, running, wait_for

BIN = Path(sys.executable).parent
LONG = ["parallel.tp=2", "train.steps=5000", "checkpoint.every=0", "train.eval_every=0"]
TORCHRUN = [BIN / "torchrun", "--nproc-per-node", "2"]
LAUNCHERS = {
    "torchrun": [*TORCHRUN, "-m", "gooseslo"],
    "torchrun-no-python": [*TORCHRUN, "--no-python", sys.executable, "-m", "gooseslo"],
    "deepspeed": [BIN / "deepspeed", "--num_gpus", "2", "--module", "gooseslo"],
}


def started(run):
    """Whether the run has done two steps."""
    metrics = run / "metrics.jsonl"
    return metrics.exists() and metrics.read_text().count("\n") >= 2


SAME = ["parallel.tp=2", "train.steps=8", "train.eval_every=4", "checkpoint.every=4"]


def keep_two_cores():
    """One thread for each of two ranks of torchrun, to whom a 1 is no wish of the user: the bits may hang on it."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])


def step_of_slurm(rank, size):
    """What srun tells each task; the port is one that no other test has, for the process's number is its own."""
    variables = {
        "SLURM_JOB_ID": os.getpid(),
        "SLURM_STEP_ID": 0,
        "SLURM_STEP_NUM_TASKS": size,
        "SLURM_NTASKS": size,
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": rank,
        "SLURM_STEP_NODELIST": "localhost",
    }
    return {name: str(value) for name, value in variables.items()}


@pytest.fixture
def srun(shell, small):
    """Start the command as so many tasks of a step; ends what a failed test leaves."""
    started = []

    def start(size, *args, variables=None):
        more = variables or (lambda rank: {})
        ranks = [
            shell.start("train", *small, *args, variables=step_of_slurm(rank, size) | more(rank))
            for rank in range(size)
        ]
        started.extend(ranks)
        return ranks

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ends(ranks):
    """Of each rank the exit code, and what it wrote."""
    written = [process.communicate(timeout=100) for process in ranks]
    return [process.returncode for process in ranks], [out for out, _ in written], [error for _, error in written]


def test_a_signal_to_all_tasks_saves_and_only_rank_0_speaks_and_reads_the_configuration(srun, shell):
    broken = shell.folder / "broken" / "hydra"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise AssertionError('a rank composes that has nothing to compose')")
    path = shell.environment["PYTHONPATH"]

    def only_rank_0_has_hydra(rank):
        return {"PYTHONPATH": f"{broken.parent}:{path}"} if rank else {}

    options = ["parallel.tp=2", "train.steps=5000", "checkpoint.every=0", "train.eval_every=0", "run.name=run"]
    ranks = srun(2, *options, variables=only_rank_0_has_hydra)
    metrics = shell.folder / "runs" / "run" / "metrics.jsonl"
    wait_for(lambda: ranks[0].poll() is not None or (metrics.exists() and metrics.read_text().count("\n") >= 2))
    for process in ranks:
        process.send_signal(signal.SIGTERM)
    codes, out, error = ends(ranks)
    assert codes == [143, 143], error
    step = len(shell.losses("run"))
    assert error[0].startswith(
        f"interrupted by SIGTERM: saved step {step}\nrun folder: runs/run\nresume: srun -n 2 gooseslo train "
    )
    assert f"step {step}: saved" in out[0] and (out[1], error[1]) == ("", "")
    run = shell.folder / "runs" / "run"
    assert (run / "checkpoints" / f"step-{step:08}" / "manifest.json").exists()
    files = {"config.yaml", "overrides.txt", "plan.txt", "environment.json", "metrics.jsonl", "logs", "checkpoints"}
    assert {path.name for path in run.iterdir()} - {".lock"} == files
    assert {path.name for path in (run / "logs").iterdir()} == {"rank-0.log", "rank-1.log"}
    config = (run / "config.yaml").read_text()
    assert "name: local\n  workers: null" in config, "as it was given: it can be used again anywhere"


def test_a_world_that_does_not_fit_is_told_once_and_every_rank_has_exit_code_2(srun, shell):
    codes, out, error = ends(srun(3, "parallel.tp=2", "run.name=run"))
    assert codes == [2, 2, 2] and out == ["", "", ""] and error[1:] == ["", ""]
    assert error[0].startswith("parallel.tp=2 parallel.pp=1: 3 ranks that slurm started: 3 is not divisible by 2")
    assert not (shell.folder / "runs").exists()


def test_a_launcher_that_finds_no_ranks_says_how_to_start_them(shell, small):
    error = shell("train", *small, "launcher=torchrun", code=2)
    assert error.startswith("launcher=torchrun: adopts ranks") and "torchrun --nproc-per-node=N -m" in error
    assert len(error.splitlines()) == 2 and not (shell.folder / "runs").exists()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_rank_that_is_waited_for_in_vain_is_named_once_and_killed(srun, shell):
    options = ["parallel.tp=2", "parallel.pp=2", "train.steps=5000", "run.name=run", "launcher.timeout_seconds=15"]
    ranks = srun(4, *options)
    metrics = shell.folder / "runs" / "run" / "metrics.jsonl"
    wait_for(lambda: ranks[0].poll() is not None or (metrics.exists() and metrics.read_text().count("\n") >= 2))
    assert ranks[0].poll() is None, ends(ranks)
    ranks[2].send_signal(signal.SIGSTOP)
    codes, _, error = ends(ranks)
    assert codes == [1, 1, -signal.SIGKILL, 1]
    said = [text for text in error if text]
    assert len(said) == 1 and "rank 2 (tp=0 pp=1 dp=0) on " in said[0] and "was stopped" in said[0]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_rank_that_is_killed_is_named_by_one_of_the_others(srun, shell):
    ranks = srun(2, "parallel.tp=2", "train.steps=5000", "checkpoint.every=0", "run.name=run")
    metrics = shell.folder / "runs" / "run" / "metrics.jsonl"
    wait_for(lambda: ranks[0].poll() is not None or (metrics.exists() and metrics.read_text().count("\n") >= 2))
    ranks[1].kill()
    codes, _, error = ends(ranks)
    assert codes == [1, -signal.SIGKILL] and error[1] == ""
    assert "rank 1 (tp=1 pp=0 dp=0) on " in error[0].splitlines()[-1] and "gone without a word" in error[0]
    assert not list((shell.folder / "runs" / "run" / "checkpoints").iterdir())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_error_that_another_rank_found_is_told_by_that_rank_alone(srun, shell):
    broken = shell.folder / "broken"
    broken.mkdir()
    words = "corpus.jsonl, line 7: not UTF-8"
    (broken / "sitecustomize.py").write_text(
        "from gooseslo.data.order.loader import TrainLoader\n"
        "from gooseslo.errors import DataError\n"
        "def batch(self, consumed):\n"
        f"    raise DataError({words!r})\n"
        "TrainLoader.batch = batch\n"
    )
    path = shell.environment["PYTHONPATH"]
    of_rank_1 = {"PYTHONPATH": f"{broken}:{path}"}
    codes, out, error = ends(srun(2, "parallel.tp=2", "run.name=run", variables=lambda rank: of_rank_1 if rank else {}))
    assert codes == [2, 2] and error == ["", f"{words}\n"] and out[1] == ""


@pytest.fixture(scope="module")
def launched(tmp_path_factory, cache):
    """Steps and losses of the run as gooseslo launches it."""
    shell = Shell(tmp_path_factory.mktemp("launched"), cache)
    process = shell.start("train", *SMALL, *SAME, "parallel.dp=1", "run.name=run")
    assert process.wait(timeout=200) == 0, process.communicate()
    return steps_and_losses(shell)


def steps_and_losses(shell):
    return [(record["step"], record["loss"]) for record in shell.metrics("run")]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_run_is_the_same_whoever_starts_the_ranks(launcher, launched, shell, small):
    """Losses of metrics.jsonl, compared as numbers."""
    by = LAUNCHERS[launcher]
    process = shell.start("train", *small, *SAME, "run.name=run", by=by, preexec_fn=keep_two_cores)
    out, error = process.communicate(timeout=200)
    assert process.returncode == 0, f"{out}\n{error}"
    assert steps_and_losses(shell) == launched


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_run_is_the_same_where_srun_starts_the_ranks(launched, srun, shell):
    codes, _, error = ends(srun(2, *SAME, "launcher=slurm", "run.name=run"))
    assert codes == [0, 0], error
    assert steps_and_losses(shell) == launched


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_a_launchers_own_ctrl_c_leaves_a_checkpoint(launcher, shell, small):
    by = LAUNCHERS[launcher]
    process = shell.start("train", *small, *LONG, "run.name=run", by=by, start_new_session=True)
    run = shell.folder / "runs" / "run"
    wait_for(lambda: process.poll() is not None or started(run))
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=100)
    step = len(shell.losses("run"))
    # DeepSpeed's launcher answers a Ctrl-C with a SIGTERM of its own; either may be the first.
    names = ("SIGINT", "SIGTERM") if launcher == "deepspeed" else ("SIGINT",)
    assert any(f"interrupted by {number}: saved step {step}\n" in error for number in names), error
    assert (run / "checkpoints" / f"step-{step:08}" / "manifest.json").exists()
    assert not running(process.pid)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_torchrun_starts_the_ranks_again_and_the_run_goes_on(shell, small):
    """Its store lives on; the second attempt finds nothing of the first one there."""
    by = [BIN / "torchrun", "--nproc-per-node", "2", "--max-restarts", "1", "-m", "gooseslo"]
    steps = ["parallel.tp=2", "train.steps=150", "train.eval_every=0", "checkpoint.every=20", "lr_schedule=constant"]
    process = shell.start("train", *small, *steps, "run.name=run", by=by, start_new_session=True)
    run = shell.folder / "runs" / "run"
    wait_for(lambda: process.poll() is not None or (run / "checkpoints" / "latest").exists())
    os.kill(children(process.pid)[1], signal.SIGKILL)
    out, error = process.communicate(timeout=200)
    assert process.returncode == 0, f"{out}\n{error}"
    assert {record["step"] for record in shell.metrics("run", "train")} == set(range(1, 151))
    assert "gone without a word" in error, "the first attempt's end is told"
