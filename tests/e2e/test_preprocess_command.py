"""`gooseslo preprocess` as a process: signals, workers that die, exit codes, what it prints."""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from command_line import Shell
from processes import children, wait_for

sys.path.append(str(Path(__file__).parents[1] / "data"))
from preprocess_cases import texts, word_tokenizer, write_jsonl
from test_indexed_files import independent_read


@pytest.fixture
def shell(tmp_path):
    word_tokenizer().save_pretrained(tmp_path / "t0")
    return Shell(tmp_path, tmp_path / "cache")


JOB = ("preprocess", "output=out", "tokenizer=t0", "workers=2")


def outputs(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith((".out", "out")))


SLOWLY = "chunk_size=1"
"""A message for each record: seconds for a file of some thousands."""


def long_job(folder):
    write_jsonl(folder / "long.jsonl", texts(10_000, longest=10))
    return "input=long.jsonl"


def test_a_killed_worker_is_named_and_a_rerun_starts_clean(shell):
    given = long_job(shell.folder)
    process = shell.start(*JOB, given, SLOWLY)
    assert any("worker process" in line for line in iter(process.stderr.readline, ""))
    wait_for(lambda: process.poll() is not None or len(children(process.pid)) == 2)
    victim = children(process.pid)[1]
    os.kill(victim, signal.SIGKILL)
    begin = time.monotonic()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1 and time.monotonic() - begin < 10
    if ".out.preprocess" in outputs(shell.folder):
        assert "the same command with resume=true goes on" in err
    assert f"worker 1 (process {victim}) was killed by SIGKILL" in err and "Traceback" not in err
    assert "out.idx" not in outputs(shell.folder)
    write_jsonl(shell.folder / "long.jsonl", texts(2000))
    shell(*JOB, given)
    assert outputs(shell.folder) == ["out.bin", "out.idx", "out.json"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_what_is_done_and_says_how_to_go_on(shell, number, code):
    given = long_job(shell.folder)
    process = shell.start(*JOB, given, SLOWLY)
    assert process.stderr.readline().startswith("out: 2 worker processes, ")
    workers = children(process.pid)
    journal = shell.folder / ".out.preprocess" / "journal.json"
    wait_for(lambda: process.poll() is not None or journal.exists())
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert err.splitlines()[-2:] == [
        "out: what is done is kept; the same command with resume=true goes on",
        f"interrupted by {number.name}",
    ]
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    if number == signal.SIGINT:
        assert "finished" not in shell(*JOB, given, "resume=true")
        assert len(independent_read(shell.folder / "out")[0]) == sum(map(bool, texts(10_000, longest=10)))


def test_standard_input_and_what_is_printed(shell):
    write_jsonl(shell.folder / "docs.jsonl", ["goose honk", ""])
    data = (shell.folder / "docs.jsonl").read_text()
    out = shell(*JOB, "input=-", stdin=data)
    assert out.startswith("out: 1 documents, 3 tokens, 1 empty, 0 rejected, in ")
    assert out.splitlines()[-1].split() == ["out.bin", "out.idx", "out.json"]
    assert independent_read(shell.folder / "out")[0] == [[3, 4, 0]]
    assert shell("preprocess", "merge=[out,out]", "output=both") == "both: 2 documents, 6 tokens\n"
    assert "'goose honk <eod>'" in shell("preprocess", "inspect=both")


def test_what_only_reading_shows_is_exit_code_two(shell):
    lines = [json.dumps({"text": "goose"})] * 50
    lines[37] = '{"text": '
    (shell.folder / "docs.jsonl").write_text("\n".join(lines))
    err = shell(*JOB, "input=docs.jsonl", code=2)
    assert err.endswith(
        "input: docs.jsonl, line 38: not JSON: Expecting value\n  on_error=skip leaves such records out\n"
    )
    assert outputs(shell.folder) == []


def test_a_terminal_shows_how_far_it_is(shell):
    leader, follower = os.openpty()
    given = long_job(shell.folder)
    process = shell.start(*JOB, given, SLOWLY, stderr=follower, variables={"COLUMNS": "140", "TERM": "xterm"})
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal closes with its last writer
        while data := os.read(leader, 1 << 16):
            shown += data
    os.close(leader)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert all(word in shown for word in (b"MB/s", b"documents/s", b"tokens/s", b"left", b"\xe2\x94\x81"))
