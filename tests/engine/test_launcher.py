"""Real workers, ended in every way there is: what is reported, how soon, and that nothing is left."""

from __future__ import annotations

import dataclasses
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gooseslo.engine.failure import Failure, describe, ended, is_of_a_collective, root_cause, silent, to_error
from gooseslo.errors import CheckpointError, ConfigError, DataError, Fault, WorkerError

SCRIPT = Path(__file__).with_name("launch_cases.py")


@pytest.fixture
def start(tmp_path):
    """Start a case in the background, with a temporary folder of its own in which nothing may stay."""
    (tmp_path / "tmp").mkdir()
    started: list[subprocess.Popen] = []

    def run(case, workers=2, name="run", method="fork", shutdown_seconds=1, **streams):
        other = "run-2" if name == "run" else "run"
        arguments = [sys.executable, SCRIPT, case, str(workers), tmp_path / name, tmp_path / other, method]
        arguments.append(str(shutdown_seconds))
        environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(SCRIPT.parents[2])}
        environment["OMP_NUM_THREADS"] = "1"
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        process = subprocess.Popen(arguments, env=environment, text=True, start_new_session=True, **pipes)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        left = wait_until_gone(process.pid)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        process.communicate()
        assert left == []
    assert [path for path in (tmp_path / "tmp").iterdir() if not path.name.startswith("torchinductor")] == []


@pytest.fixture
def finish(start):
    """Run a case to its end: exit code, standard output, standard error."""

    def run(case, workers=2):
        process = start(case, workers)
        output, errors = process.communicate(timeout=60)
        return process.returncode, output, errors

    return run


def session_members(session: int) -> list[int]:
    """The living processes of the case that leads this session."""
    members = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            members.append(int(path.parent.name))
    return members


def wait_until_gone(session: int, seconds: float = 5.0) -> list[int]:
    deadline = time.monotonic() + seconds
    while (left := session_members(session)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def wait_for_workers(run_dir: Path, workers: int) -> None:
    deadline = time.monotonic() + 30
    while len(list(run_dir.glob("pid-*"))) < workers:
        assert time.monotonic() < deadline, "the workers did not start"
        time.sleep(0.05)


def test_workers_reach_the_terminal_through_rank_0_and_their_logs_otherwise(finish, tmp_path):
    code, output, errors = finish("succeed", 2)
    assert (code, output, errors) == (0, "seen on the terminal: 1 thread\n", "")
    for rank in range(2):
        log = (tmp_path / "run" / "logs" / f"rank-{rank}.log").read_text()
        assert f"a line of rank {rank}\n" in log and "a line of C++ code\n" in log
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["logs"]


def test_workers_compute_deterministically_when_told(finish):
    assert finish("compute_deterministically", 1) == (0, "(True, True) :4096:8\n", "")


def test_no_worker_connects_before_the_last_is_forked(finish, tmp_path):
    """Else a fork can copy a lock of libc that a thread of the parent holds just then: a worker waits for ever."""
    assert finish("start_slowly", 3)[0] == 0
    assert (tmp_path / "run" / "order").read_text().split() == ["forked"] * 3 + ["connects"] * 3


def test_logs_are_appended_to(finish, tmp_path):
    for _ in range(2):
        assert finish("succeed", 1)[0] == 0
    assert (tmp_path / "run" / "logs" / "rank-0.log").read_text().count("a line of rank 0\n") == 2


@pytest.mark.parametrize("case", ["raise_on_rank_1", "raise_late_after_the_others_failed"])
def test_an_exception_ends_the_run_with_the_traceback_of_the_rank_that_raised(case, finish, tmp_path):
    started = time.monotonic()
    code, _, errors = finish(case, 4)
    assert code == 1 and time.monotonic() - started < 15
    lines = errors.splitlines()
    assert errors.count("Traceback") == 1 and errors.count("reed 17\n") == 1
    assert lines[-2] == "ValueError: reed 17" and f"in {case}" in errors
    assert lines[-1].startswith("rank 1 (tp=1 pp=0 dp=0) on ") and lines[-1].endswith("failed with exit code 1")
    assert all(f"{tmp_path}/run/logs/rank-{rank}.log" in errors for rank in range(4))
    for rank in (0, 2, 3):  # those that failed are consequences, of one line each
        assert sum(line.startswith(f"  rank {rank} (tp={rank} pp=0 dp=0): RuntimeError") for line in lines) <= 1
    assert [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("case, rank", [("kill_rank_2", 2), ("kill_rank_1_while_others_compute", 1)])
def test_a_killed_worker_ends_the_run_within_ten_seconds(case, rank, start, tmp_path):
    process = start(case, 4)
    wait_for_workers(tmp_path / "run", 4)
    marked = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - marked < 10 and process.returncode == 1
    last = errors.splitlines()[-1]
    assert last.startswith(f"rank {rank} (tp={rank} pp=0 dp=0) on ") and "killed by signal 9 (SIGKILL)" in last
    assert session_members(process.pid) == []


def test_a_worker_that_ends_before_all_have_started_ends_the_run(start):
    process = start("leave_before_signing_in", 2)
    began = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - began < 20, "it did not wait for the agent to lose patience"
    assert process.returncode == 1 and errors.splitlines()[-1].endswith("failed with exit code 3")
    assert errors.splitlines()[-1].startswith("rank 1 ") and session_members(process.pid) == []


def test_a_users_error_keeps_its_exit_code_and_has_no_traceback(finish):
    assert finish("raise_a_data_error", 2) == (2, "", "corpus.jsonl, line 7: not UTF-8\n")


def test_a_worker_that_just_leaves_is_a_failure(finish):
    code, _, errors = finish("exit_in_the_middle", 2)
    assert code == 1 and "SystemExit" in errors
    assert errors.splitlines()[-1].startswith("rank 0 ")


@pytest.mark.slow
def test_spawned_workers_are_like_forked_ones(start):
    process = start("raise_on_rank_1", 2, method="spawn")
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (1, "")
    assert errors.splitlines()[-2] == "ValueError: reed 17" and errors.splitlines()[-1].startswith("rank 1 ")
    process = start("succeed", 2, method="spawn")
    assert process.communicate(timeout=60) == ("seen on the terminal: 1 thread\n", "")


def test_two_jobs_at_once_both_finish(start, tmp_path):
    arguments = ("run_beside_another", 2)
    first, second = start(*arguments, name="run"), start(*arguments, name="run-2")
    assert [process.communicate(timeout=60)[1] for process in (first, second)] == ["", ""]
    assert (first.returncode, second.returncode) == (0, 0)


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_parent_ends_all_without_a_traceback(number, code, start, tmp_path):
    process = start("wait_in_a_collective", 2)
    wait_for_workers(tmp_path / "run", 2)
    started = time.monotonic()
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (code, "", f"interrupted by {number.name}\n")
    assert time.monotonic() - started < 8 and session_members(process.pid) == []


@pytest.mark.parametrize("case", ["interrupt_a_finaliser", "interrupt_the_agent_in_vain"])
def test_a_signal_that_a_finaliser_swallows_ends_the_run_all_the_same(case, start):
    process = start(case, 2)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors.rstrip().endswith("interrupted by SIGINT")
    assert session_members(process.pid) == []


def test_workers_that_do_not_end_after_a_signal_are_killed(start, tmp_path):
    process = start("train_deaf", 2)
    wait_for_workers(tmp_path / "run", 2)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (143, "") and session_members(process.pid) == []
    words = "not all workers could save and end within launcher.shutdown_seconds=1"
    assert errors == f"interrupted by SIGTERM: {words}\n"
    log = (tmp_path / "run" / "logs" / "rank-1.log").read_text()
    assert "in train_deaf" in log, "each shows where it was"


def test_a_second_signal_ends_all_at_once_and_the_same_one_twice_does_not(start, tmp_path):
    nohup = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    process = start("train_deaf", 2, shutdown_seconds=60, **nohup)
    wait_for_workers(tmp_path / "run", 2)
    os.killpg(process.pid, signal.SIGHUP)
    time.sleep(0.7)  # had it counted, the next signal would be the second
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)  # as a terminal and `timeout` both do
    time.sleep(1)
    assert process.poll() is None
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and time.monotonic() - started < 5 and session_members(process.pid) == []
    assert errors == "interrupted by SIGINT: the second signal ended it at once\n"


@pytest.mark.parametrize("whom", ["parent", "one worker", "all"])
def test_ranks_that_train_stop_together_on_a_signal(whom, start, tmp_path):
    process = start("train_until_asked", 3)
    wait_for_workers(tmp_path / "run", 3)
    if whom == "parent":
        process.send_signal(signal.SIGINT)
    elif whom == "all":
        os.killpg(process.pid, signal.SIGINT)
    else:
        os.kill(int((tmp_path / "run" / "pid-2").read_text()), signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "interrupted by SIGINT\n") and process.returncode == 130
    assert session_members(process.pid) == []


def test_a_save_that_fails_after_a_signal_is_told_with_the_signals_exit_code(start, tmp_path):
    process = start("fail_to_save", 2)
    wait_for_workers(tmp_path / "run", 2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert errors == "interrupted by SIGTERM: not saved: rank 1: SaveError: the disk is too full\n"


@pytest.mark.parametrize(
    "case, words",
    [("stop_rank_1", "was stopped"), pytest.param("keep_rank_1_busy", "stands above", marks=pytest.mark.slow)],
)
def test_the_rank_that_a_collective_waited_for_in_vain_is_named(case, words, start, tmp_path):
    process = start(case, 3)
    wait_for_workers(tmp_path / "run", 3)
    started = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and time.monotonic() - started < 3 + 15
    assert session_members(process.pid) == []
    lines = errors.splitlines()
    assert lines[-1].startswith("rank 1 (tp=1 pp=0 dp=0) on ") and words in lines[-1]
    assert (
        lines[0] == "waited for it in vain:" and lines[1].startswith("  rank 0 ") and lines[2].startswith("  rank 2 ")
    )
    assert f"  rank 1: {tmp_path}/run/logs/rank-1.log" in lines
    assert ("in count_reeds" in errors) == (case == "keep_rank_1_busy")
    for rank in (0, 2):
        log = (tmp_path / "run" / "logs" / f"rank-{rank}.log").read_text()
        assert "Thread 0x" in log and "Timed out" in log


def test_workers_die_with_their_parent_even_inside_a_collective(start, tmp_path):
    process = start("train_deaf", 2)
    wait_for_workers(tmp_path / "run", 2)
    time.sleep(0.2)  # so that rank 1 is inside
    process.kill()
    process.wait()
    assert wait_until_gone(process.pid, seconds=2) == []


def test_what_a_killed_parent_left_in_the_run_folder_goes_with_the_next_launch(start, tmp_path):
    process = start("wait_in_a_collective", 1)
    wait_for_workers(tmp_path / "run", 1)
    process.kill()
    process.wait()
    assert list((tmp_path / "run").glob(".launch-*")) != []
    start("succeed", 1).communicate(timeout=60)
    assert list((tmp_path / "run").glob(".launch-*")) == []


def test_the_cursor_is_shown_again_when_rank_0_dies_in_a_live_display(start):
    ours, theirs = pty.openpty()
    process = start("hide_the_cursor", 2, stdout=theirs)
    process.communicate(timeout=60)
    seen = ""
    while select.select([ours], [], [], 0.1)[0]:
        seen += os.read(ours, 4096).decode()
    os.close(theirs)
    os.close(ours)
    assert process.returncode == 1
    assert seen.index("\x1b[?25l") < seen.index("\x1b[?25h")
    assert seen.endswith("\x1b[?25h\r\n"), "what is said next begins its own line"


# ---- the cause among all failures, without processes


def exception(rank, at, **fields):
    return Failure(rank=rank, exit_code=1, type_name="E", at=at, **fields)


def test_the_cause_is_not_the_first_failure_but_the_one_that_others_follow_from():
    collective, own = exception(0, 1.0, in_collective=True), exception(1, 2.0)
    killed, aborted = Failure(rank=2, exit_code=-9, at=3.0), Failure(rank=3, exit_code=-6, at=0.5)
    assert root_cause([collective, own, aborted]) is own
    assert root_cause([collective, own, killed, aborted]) is killed
    assert root_cause([collective, aborted]) is aborted
    assert root_cause([collective, exception(3, 0.5, in_collective=True)]).rank == 3


def test_a_broken_connection_is_told_from_a_ranks_own_error():
    try:
        try:
            raise RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer")
        except RuntimeError as error:
            raise AssertionError("the stage could not receive") from error
    except AssertionError as wrapped:
        assert is_of_a_collective(wrapped)
    assert not is_of_a_collective(ValueError("the socket in the text is a plug"))
    assert not is_of_a_collective(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not describe(DataError("connection closed by peer is on line 3"), 0).in_collective


def test_the_cause_of_a_timeout_is_who_was_waited_for():
    timed_out = [exception(rank, 1.0, in_collective=True, timed_out=True) for rank in (0, 1)]
    stopped, elsewhere = silent(2, "T", host="node7"), Failure(rank=3, exit_code=1, text="here", missing=True)
    waiting = Failure(rank=4, exit_code=1, text="in a collective too", missing=True, in_collective=True)
    assert root_cause([*timed_out, waiting, elsewhere, stopped]) is stopped
    assert root_cause([*timed_out, waiting, elsewhere]) is elsewhere
    assert root_cause([*timed_out, waiting]) is timed_out[0]
    own, reset = exception(5, 9.0), exception(0, 1.0, in_collective=True)
    assert root_cause([*timed_out, own, stopped]) is own
    assert root_cause([reset, elsewhere, stopped]) is reset, "nobody waited for these: they were ended"


def test_what_nccl_aborted_waited_in_vain(tmp_path):
    """No exception there: the log says it, and the rank that did not come is the cause."""
    log = tmp_path / "rank-0.log"
    log.write_text("a line\n" * 20000 + "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)\n")
    aborted, stopped = ended(0, -signal.SIGABRT, log), silent(1, "T", host="node7")
    assert aborted.timed_out and aborted.in_collective
    assert root_cause([aborted, dataclasses.replace(aborted, rank=2), stopped]) is stopped
    text = str(to_error([aborted, stopped], coordinates=["tp=0", "tp=1"], logs={0: log}))
    assert "  rank 0 (tp=0): was aborted by NCCL" in text
    assert text.splitlines()[-1].startswith("rank 1 (tp=1) on node7 did not come to the collective")
    for other in (ended(0, -signal.SIGABRT, tmp_path / "none"), ended(0, -signal.SIGSEGV, log)):
        assert not other.timed_out and other.ending().startswith("was killed by signal")


def test_a_rank_is_named_with_the_machine_that_it_ran_on(monkeypatch):
    found = describe(ValueError("reed 17"), 0)
    monkeypatch.setattr(socket, "gethostname", lambda: "the speaker's")
    text = str(to_error([found], coordinates=["tp=0"], logs={}))
    assert f"on {os.uname().nodename} " in text.splitlines()[-1]


def test_a_users_error_comes_back_as_the_class_it_was():
    for error, kind in [(DataError("d"), DataError), (CheckpointError("c"), CheckpointError)]:
        back = to_error([describe(error, 0)], coordinates=["tp=0"], logs={})
        assert type(back) is kind and str(back) == str(error) and back.exit_code == 2
    back = to_error([describe(ConfigError(Fault(key="a", rule="is wrong")), 0)], coordinates=["tp=0"], logs={})
    assert str(back) == "a: is wrong" and back.exit_code == 2
    assert type(to_error([describe(WorkerError("w"), 0)], coordinates=["tp=0"], logs={})) is WorkerError
