"""The tool that other tests stand on: results, failures, time limits and clean endings of `run_ranks`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gooseslo.testing.ranks import RankError, close_ranks, run_ranks


@dataclass(frozen=True)
class Answer:
    rank: int
    total: torch.Tensor


def add_up(rank: int, world_size: int, scale: float) -> Answer:
    total = torch.tensor([float(rank)], dtype=torch.float64, requires_grad=True) * scale
    dist.all_reduce(total.detach())
    return Answer(rank, total)


def process_id(rank: int, world_size: int) -> int:
    return os.getpid()


def surroundings(rank: int, world_size: int) -> tuple[str, int, float, int]:
    return os.getcwd(), torch.get_num_threads(), torch.rand(1).item(), len(list(Path("/proc/self/fd").iterdir()))


def leave_a_mess(rank: int, world_size: int) -> None:
    dist.new_group([0])
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    dist.isend(torch.ones(1), (rank + 1) % world_size)  # nobody receives it


def default_state(rank: int, world_size: int) -> tuple[str, bool]:
    received = torch.zeros(1)
    request = dist.isend(torch.full((1,), 7.0), (rank + 1) % world_size)
    dist.recv(received, (rank - 1) % world_size)
    request.wait()
    return f"{torch.get_default_dtype()} {received.item():g}", torch.is_grad_enabled()


def raise_on_rank_1(rank: int, world_size: int) -> None:
    if rank == 1:
        sys.stdout.write("reading the reed\n")
        raise ValueError("reed 17")
    dist.barrier()


def hang_on_rank_0(rank: int, world_size: int) -> None:
    if rank == 0:
        time.sleep(600)


def hang_in_a_collective(rank: int, world_size: int) -> None:
    if rank == 0:
        dist.barrier()


def die_on_rank_2(rank: int, world_size: int) -> None:
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def return_a_lambda(rank: int, world_size: int) -> object:
    return lambda: rank


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int], seconds: float = 5.0) -> list[int]:
    """Those still alive after `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def test_results_come_by_rank_and_hold_tensors_and_classes_of_the_test():
    results = run_ranks(add_up, 3, 2.0)
    assert [result.rank for result in results] == [0, 1, 2]
    assert all(type(result) is Answer and result.total.dtype == torch.float64 for result in results)
    assert run_ranks(add_up, 1, 2.0)[0].total.item() == 0.0


def test_ranks_are_kept_between_cases_and_start_each_alike(tmp_path, monkeypatch):
    assert run_ranks(process_id, 2) == run_ranks(process_id, 2)
    monkeypatch.chdir(tmp_path)
    run_ranks(surroundings, 2)
    first, second = run_ranks(surroundings, 2), run_ranks(surroundings, 2)
    assert first == second
    assert first[0][:2] == (str(tmp_path), 1)


def test_what_a_case_leaves_behind_does_not_reach_the_next():
    run_ranks(leave_a_mess, 2)
    assert run_ranks(default_state, 2) == [("torch.float32 7", True)] * 2


def test_the_failing_ranks_own_traceback_is_raised_at_once():
    started = time.monotonic()
    with pytest.raises(RankError, match="reed 17") as caught:
        run_ranks(raise_on_rank_1, 4)
    assert time.monotonic() - started < 10
    assert caught.value.rank == 1 and caught.value.type_name == "ValueError"
    assert "in raise_on_rank_1" in str(caught.value) and "reading the reed" in str(caught.value)


def test_a_failed_pool_is_ended_and_replaced():
    before = run_ranks(process_id, 4)
    with pytest.raises(RankError):
        run_ranks(raise_on_rank_1, 4)
    assert wait_until_gone(before) == []
    assert not set(before) & set(run_ranks(process_id, 4))


@pytest.mark.parametrize("function, place", [(hang_on_rank_0, "hang_on_rank_0"), (hang_in_a_collective, "barrier")])
def test_a_hanging_rank_is_ended_at_the_limit_and_says_where_it_hangs(function, place):
    before = run_ranks(process_id, 2)
    started = time.monotonic()
    with pytest.raises(RankError, match=r"ranks \[0\] of 2 not done after 1 s") as caught:
        run_ranks(function, 2, timeout_seconds=1)
    assert time.monotonic() - started < 4
    assert place in str(caught.value)
    assert wait_until_gone(before) == []


def test_a_killed_rank_is_reported_with_its_signal():
    with pytest.raises(RankError, match=r"rank 2 of 4: killed by signal 9 \(SIGKILL\)"):
        run_ranks(die_on_rank_2, 4)


def test_a_result_that_cannot_travel_is_the_ranks_failure():
    with pytest.raises(RankError, match="pickle"):
        run_ranks(return_a_lambda, 2)
    with pytest.raises(ValueError, match="define it at the top level"):
        run_ranks(lambda rank, world_size: rank, 2)


def test_twenty_cases_on_four_ranks_take_under_three_seconds():
    run_ranks(process_id, 4)
    started = time.monotonic()
    for _ in range(20):
        run_ranks(process_id, 4)
    assert time.monotonic() - started < 3


def test_a_parent_that_computed_with_threads_can_still_run_ranks():
    torch.set_num_threads(2)
    try:
        torch.randn(512, 512) @ torch.randn(512, 512)
        close_ranks()
        assert len(run_ranks(add_up, 2, 1.0)) == 2
    finally:
        torch.set_num_threads(1)


SCRIPT = """
import os, sys, time
import torch.distributed as dist
from gooseslo.testing.ranks import run_ranks

def report(rank, world_size, folder):
    with open(f"{folder}/{os.getpid()}", "w"):
        pass
    if folder.endswith("hang"):
        dist.barrier() if rank == 0 else time.sleep(600)

if __name__ == "__main__":
    run_ranks(report, 2, sys.argv[1])
"""


@pytest.mark.parametrize("killed", [False, True], ids=["end", "kill -9"])
def test_no_rank_and_no_folder_outlives_its_parent(killed, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    folder = tmp_path / ("hang" if killed else "done")
    folder.mkdir()
    (tmp_path / "tmp").mkdir()
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": root}
    process = subprocess.Popen([sys.executable, str(script), str(folder)], env=environment)
    if killed:
        deadline = time.monotonic() + 30
        while len(list(folder.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
    process.wait(timeout=60)
    pids = [int(path.name) for path in folder.iterdir()]
    assert len(pids) == 2
    assert wait_until_gone(pids) == []
    deadline = time.monotonic() + 5
    while list((tmp_path / "tmp").glob("gooseslo*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list((tmp_path / "tmp").glob("gooseslo*")) == []
