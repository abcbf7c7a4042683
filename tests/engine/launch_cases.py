"""A command that launches workers, for test_launcher, with the arguments that `main` names.

Its own process, because workers are forked from it and the process of the tests may have computed with threads.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from gooseslo.engine import launcher
from gooseslo.engine import worker as worker_module
from gooseslo.engine.worker import Worker
from gooseslo.errors import DataError, GooseError, SaveError

RENDEZVOUS_SECONDS = 20
TIMEOUT_SECONDS = {"stop_rank_1": 3, "keep_rank_1_busy": 3}


def succeed(worker: Worker) -> None:
    total = torch.ones(1)
    dist.all_reduce(total)
    sys.stdout.write(f"a line of rank {worker.rank}\n")
    os.write(2, b"a line of C++ code\n")
    assert total.item() == worker.world_size and (worker.console is not None) == (worker.rank == 0)
    if worker.console is not None:
        worker.console.write(f"seen on the terminal: {torch.get_num_threads()} thread\n")


def compute_deterministically(worker: Worker) -> None:
    """The workers' settings on the terminal; see main."""
    if worker.console is not None:
        flags = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic
        worker.console.write(f"{flags} {os.environ.get('CUBLAS_WORKSPACE_CONFIG')}\n")


class Interrupting:
    """A cycle whose finaliser, where what a handler raises is lost, gets a Ctrl-C."""

    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)


def interrupt_a_finaliser(worker: Worker) -> None:
    """The launch should have ended before; see main."""
    wait_in_a_collective(worker)


def interrupt_the_agent_in_vain(worker: Worker) -> None:
    """See main."""
    wait_in_a_collective(worker)


def lose_what_the_agent_raises() -> None:
    """The Ctrl-C comes where nobody hears of the exception, just before the workers start."""
    start = launcher.elastic_launch

    def interrupted(*args: object) -> object:
        Interrupting().cycle = None
        return start(*args)

    launcher.elastic_launch = interrupted


def mark(worker: Worker) -> None:
    (worker.run_dir / f"pid-{worker.rank}").write_text(str(os.getpid()))


def raise_on_rank_1(worker: Worker) -> None:
    mark(worker)
    if worker.rank == 1:
        raise ValueError("reed 17")
    dist.barrier()


def raise_late_after_the_others_failed(worker: Worker) -> None:
    """Rank 1 drops its connections and raises only a second later, as when a clean-up takes its time."""
    if worker.rank == 1:
        dist.destroy_process_group()
        time.sleep(1)
        raise ValueError("reed 17")
    dist.barrier()


def kill_rank_2(worker: Worker) -> None:
    mark(worker)
    dist.barrier()
    if worker.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def kill_rank_1_while_others_compute(worker: Worker) -> None:
    mark(worker)
    dist.barrier()
    if worker.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def raise_a_data_error(worker: Worker) -> None:
    if worker.rank == 1:
        raise DataError("corpus.jsonl, line 7: not UTF-8")
    dist.barrier()


def exit_in_the_middle(worker: Worker) -> None:
    if worker.rank == 0:
        sys.exit(0)
    dist.barrier()


def wait_in_a_collective(worker: Worker) -> None:
    mark(worker)
    if worker.rank == 0:
        time.sleep(600)
    dist.barrier()


def train_deaf(worker: Worker) -> None:
    """Training that never comes to the end of its step."""
    worker.begin_training()
    mark(worker)
    time.sleep(600)


def train_until_asked(worker: Worker) -> None:
    """Training that ends when rank 1 is asked to; the others hear of it from there."""
    worker.begin_training()
    mark(worker)
    asked = torch.zeros(1)
    while not asked:
        asked = torch.tensor([float(worker.signal_number())])
        dist.all_reduce(asked, op=dist.ReduceOp.MAX)
    worker.end_training(int(asked))


def fail_to_save(worker: Worker) -> None:
    worker.begin_training()
    mark(worker)
    while not worker.signal_number():
        time.sleep(0.01)
    if worker.rank == 1:
        raise SaveError("the disk is too full")
    dist.barrier()


def stop_rank_1(worker: Worker) -> None:
    worker.begin_training()
    mark(worker)
    if worker.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.barrier()


def keep_rank_1_busy(worker: Worker) -> None:
    worker.begin_training()
    mark(worker)
    if worker.rank == 1:
        count_reeds()
    dist.barrier()


def count_reeds() -> None:
    time.sleep(600)


def hide_the_cursor(worker: Worker) -> None:
    if worker.console is not None:
        worker.console.write("\x1b[?25l")
        worker.console.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def run_beside_another(worker: Worker) -> None:
    """End only when a second job, started at the same time, is running too."""
    mark(worker)
    other = Path(sys.argv[4])
    deadline = time.monotonic() + RENDEZVOUS_SECONDS
    while not (other / f"pid-{worker.rank}").exists():
        assert time.monotonic() < deadline, "the other job did not start"
        time.sleep(0.02)
    succeed(worker)


def start_slowly(worker: Worker) -> None:
    """See main: nothing to do, the order of what came before is the case."""


def note_the_order(run_dir: Path) -> None:
    """Have each fork take a while, and write down when workers were forked and when they went on to connect."""
    enter_world = worker_module._enter_world

    def note(what: str) -> None:
        with (run_dir / "order").open("a") as file:
            file.write(f"{what}\n")

    def enter(*args):
        note("connects")
        return enter_world(*args)

    worker_module._enter_world = enter
    os.register_at_fork(before=lambda: time.sleep(0.2), after_in_child=lambda: note("forked"))


def leave_before_signing_in(worker: Worker) -> None:
    """See main: rank 1 does not come so far."""


def lose_rank_1() -> None:
    """Have rank 1 end as soon as it is forked, as for want of memory."""
    begin = worker_module.Duties.begin

    def leave_or_begin(duties: worker_module.Duties) -> None:
        if duties.rank == 1:
            os._exit(3)
        begin(duties)

    worker_module.Duties.begin = leave_or_begin


def start_by(method: str) -> None:
    """Have the agent start its workers by `method`: spawn is what CUDA needs, and works without it."""
    make_config = launcher._launch_config
    launcher._launch_config = lambda *args: dataclasses.replace(make_config(*args), start_method=method)


def main(case: str, num_workers: int, run_dir: Path, shutdown_seconds: int) -> int:
    spec = launcher.LaunchSpec(
        num_workers=num_workers,
        run_dir=run_dir,
        device="cpu",
        timeout_seconds=TIMEOUT_SECONDS.get(case, 60),
        shutdown_seconds=shutdown_seconds,
        coordinates=tuple(f"tp={rank} pp=0 dp=0" for rank in range(num_workers)),
        deterministic=case == "compute_deterministically",
    )
    if case == "start_slowly":
        run_dir.mkdir()
        note_the_order(run_dir)
    if case == "interrupt_a_finaliser":
        gc.disable()
        Interrupting()
    if case == "interrupt_the_agent_in_vain":
        lose_what_the_agent_raises()
    if case == "leave_before_signing_in":
        lose_rank_1()
    try:
        launcher.launch(spec, globals()[case])
    except GooseError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    case, workers, folder, _, method, seconds = sys.argv[1:]
    start_by(method)
    sys.exit(main(case, int(workers), Path(folder), int(seconds)))
