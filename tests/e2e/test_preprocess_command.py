"""`gooseslo preprocess` as a process: kills at any moment, full disks, exit codes, what it prints."""

import contextlib
import json
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

import pytest
from command_line import Shell

sys.path.append(str(Path(__file__).parents[1] / "data"))
from preprocess_cases import texts, word_tokenizer, write_jsonl
from test_indexed_files import independent_read


@pytest.fixture
def shell(tmp_path):
    word_tokenizer().save_pretrained(tmp_path / "t0")
    return Shell(tmp_path, tmp_path / "cache")


JOB = ("preprocess", "output=out", "tokenizer=t0", "workers=2")


def files(folder, output="out"):
    return [(folder / f"{output}.{ending}").read_bytes() for ending in ("bin", "idx")]


def outputs(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith((".out", "out")))


def big_file(folder, count=60_000):
    """A file that takes seconds."""
    lines = [json.dumps({"text": text}) for text in texts(2000, longest=120)]
    draw = random.Random(0)
    with (folder / "big.jsonl").open("w") as file:
        file.writelines(draw.choice(lines) + "\n" for _ in range(count))
    return "input=big.jsonl"


def children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def killed_and_resumed(shell, kills, *, seed):
    """Kill the command that often at random moments of its work, going on each time; how often it had work left."""
    given = big_file(shell.folder, 20_000 * kills)
    draw = random.Random(seed)
    assert shell(*JOB[:1], given, "output=whole", *JOB[2:]).startswith("whole: ")
    went_on = 0
    for number in range(kills):
        process = shell.start(*JOB, given, "resume=true", "chunk_size=50", stderr=-1)
        line = ""
        while "worker process" not in line:
            line = process.stderr.readline()
            went_on += line.startswith("going on with out: ")
        time.sleep(draw.uniform(0.3, 1.6))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert "out.idx" not in outputs(shell.folder), f"it was faster than kill {number}"
    shell(*JOB, given, "resume=true")
    assert files(shell.folder) == files(shell.folder, "whole")
    assert outputs(shell.folder) == ["out.bin", "out.idx", "out.json"]
    return went_on


def test_killed_three_times_and_resumed_it_is_the_same(shell):
    assert killed_and_resumed(shell, 3, seed=1) >= 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_twenty_times_and_resumed_it_is_the_same(shell):
    assert killed_and_resumed(shell, 20, seed=2) >= 10


def test_a_killed_worker_is_named_and_a_rerun_starts_clean(shell):
    given = big_file(shell.folder)
    process = shell.start(*JOB, given)
    while "worker process" not in process.stderr.readline():
        pass
    victim = children(process.pid)[1]
    os.kill(victim, signal.SIGKILL)
    begin = time.monotonic()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1 and time.monotonic() - begin < 10
    assert f"worker 1 (process {victim}) was killed by SIGKILL" in err and "Traceback" not in err
    assert "out.idx" not in outputs(shell.folder)
    write_jsonl(shell.folder / "small.jsonl", texts(2000))
    shell(*JOB, "input=small.jsonl")
    assert outputs(shell.folder) == ["out.bin", "out.idx", "out.json"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_what_is_done_and_says_how_to_go_on(shell, number, code):
    given = big_file(shell.folder)
    process = shell.start(*JOB, given)
    while "worker process" not in process.stderr.readline():
        pass
    workers = children(process.pid)
    journal = shell.folder / ".out.preprocess" / "journal.json"
    while not journal.exists():
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert err.splitlines()[-2:] == [
        "out: what is done is kept; the same command with resume=true goes on",
        f"interrupted by {number.name}",
    ]
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    shell(*JOB, given, "resume=true")
    assert outputs(shell.folder) == ["out.bin", "out.idx", "out.json"]


def test_a_full_disk_is_said_and_can_be_gone_on_from(shell):
    given = big_file(shell.folder)
    shell("preprocess", given, "output=whole", *JOB[2:])
    limit = 1_500_000
    assert len(files(shell.folder, "whole")[0]) > 2 * limit

    def small_disk():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    process = shell.start(*JOB, given, preexec_fn=small_disk)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "Traceback" not in err
    assert "output=out: cannot be written: File too large\n  make room, then go on with resume=true" in err
    assert outputs(shell.folder) in ([".out.preprocess"], [])
    shell(*JOB, given, "resume=true")
    assert files(shell.folder) == files(shell.folder, "whole")


def test_standard_input_and_what_is_printed(shell):
    write_jsonl(shell.folder / "docs.jsonl", ["goose honk", ""])
    data = (shell.folder / "docs.jsonl").read_text()
    out = shell(*JOB, "input=-", stdin=data)
    assert out.startswith("out: 1 documents, 3 tokens, 1 empty, 0 rejected, in ")
    assert out.splitlines()[-1].split() == ["out.bin", "out.idx", "out.json"]
    assert independent_read(shell.folder / "out")[0] == [[3, 4, 0]]
    shell("preprocess", "input=-", "output=lines", "tokenizer=t0", stdin="goose honk\n\n")
    assert files(shell.folder) == files(shell.folder, "lines")
    assert shell("preprocess", "merge=[out,lines]", "output=both") == "both: 2 documents, 6 tokens\n"
    assert "documents   2" in shell("preprocess", "inspect=both")


def test_what_only_reading_shows_is_exit_code_two(shell):
    lines = [json.dumps({"text": "goose"})] * 50
    lines[37] = '{"text": '
    (shell.folder / "docs.jsonl").write_text("\n".join(lines))
    err = shell(*JOB, "input=docs.jsonl", code=2)
    assert err.endswith(
        "input: docs.jsonl, line 38: not JSON: Expecting value\n  on_error=skip leaves such records out\n"
    )
    assert outputs(shell.folder) == []


@pytest.mark.parametrize("terminal", [True, False])
def test_progress(shell, terminal):
    given = big_file(shell.folder, 40_000)
    if not terminal:
        process = shell.start(*JOB, given)
        _, err = process.communicate(timeout=60)
        assert err.splitlines()[0].startswith("out: 2 worker processes, ") and "\x1b" not in err
        return
    leader, follower = os.openpty()
    process = shell.start(*JOB, given, stderr=follower, variables={"COLUMNS": "140", "TERM": "xterm"})
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal closes with its last writer
        while data := os.read(leader, 1 << 16):
            shown += data
    os.close(leader)
    assert process.wait(timeout=60) == 0
    process.communicate()
    assert all(word in shown for word in (b"MB/s", b"documents/s", b"tokens/s", b"left", b"\xe2\x94\x81"))
