"""Killed at any moment, from the first folder to the last name, and gone on with: the bytes of a whole run."""

import multiprocessing
import os
import random
import shutil
import signal
import time

import pytest
from preprocess_cases import Bench, texts, write_jsonl

from gooseslo.data.indexed.sidecar import Sidecar
from gooseslo.data.preprocess import tokenise
from gooseslo.data.preprocess.writer import TokenWriter

CALLS = ("write", "fsync", "rename", "replace", "open", "mkdir", "ftruncate", "unlink", "rmdir", "close")
"""Of os: between two of them nothing changes on the disk, so that being killed at one is being killed at any moment."""
PHASES = {"start": 40, "middle": 2500, "end": 70}
"""Calls from the start, from the first document on, and from the last on: about as many as there are."""
OPTIONS = {"resume": True, "chunk_size": 1, "workers": 2, "tokenizer": None, "train_tokenizer": 300}


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenise, "_JOURNAL_SECONDS", 0.02)
    bench = Bench(tmp_path)
    write_jsonl(tmp_path / "docs.jsonl", texts(1500, longest=20))
    bench.run("docs.jsonl", output="whole", **{**OPTIONS, "resume": False})
    return bench


def die_at_a_call(phase, number):
    """Kill this process at that call of the phase; half of what it was to write is written."""
    seen = {"phase": "start", "calls": 0}

    def watched(name, real):
        def call(*args, **options):
            if seen["phase"] == phase:
                seen["calls"] += 1
                if seen["calls"] == number:
                    if name == "write":
                        real(args[0], bytes(args[1])[: len(args[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return call

    def enters(name, real):
        def call(*args, **options):
            seen["phase"] = name
            return real(*args, **options)

        return call

    for name in CALLS:
        setattr(os, name, watched(name, getattr(os, name)))
    TokenWriter.add = enters("middle", TokenWriter.add)
    TokenWriter.finish = enters("end", TokenWriter.finish)


def work(bench, phase, number):
    if phase != "time":
        die_at_a_call(phase, number)
    bench.run("docs.jsonl", **OPTIONS)


def killed_and_resumed(bench, kills, *, seed):
    """Kill the process once for each phase named; of how many kills something was left, by phase."""
    draw, left = random.Random(seed), dict.fromkeys(kills, 0)
    work_folder = bench.folder / ".out.preprocess"
    todo, tries = list(kills), 0
    while todo:
        tries += 1
        assert tries < 10 * len(kills), f"it is always done first: {todo}"
        phase = todo[0]
        process = multiprocessing.get_context("fork").Process(
            target=work, args=(bench, phase, draw.randint(1, PHASES.get(phase, 1)))
        )
        process.start()
        process.join(draw.uniform(0, 1.5) if phase == "time" else 60)
        process.kill()
        process.join()
        assert process.exitcode in (-signal.SIGKILL, 0)
        if process.exitcode == -signal.SIGKILL:
            todo.pop(0)
            left[phase] += work_folder.exists()
        else:  # done first, as it may be where an earlier process had done the most of it
            check(bench)
            remove_output(bench)
    bench.run("docs.jsonl", **OPTIONS)
    check(bench)
    return left


def remove_output(bench):
    for path in bench.folder.glob("out.[bij]*"):
        path.unlink()
    shutil.rmtree(bench.folder / "out.tokenizer")


def check(bench, expected="whole"):
    assert bench.files() == bench.files(expected)
    facts, whole = Sidecar.read(bench.folder / "out"), Sidecar.read(bench.folder / expected)
    assert (facts.tokens_sha256, facts.sources) == (whole.tokens_sha256, whole.sources)
    assert bench.left() == ["out.bin", "out.idx", "out.json", "out.tokenizer"]


def test_killed_in_every_phase_and_resumed_it_is_the_same(bench):
    begin = time.monotonic()
    left = killed_and_resumed(bench, ["start", "middle", "end", "end", "middle", "end"], seed=1)
    assert left["middle"] == 2 and left["end"] >= 1, (left, time.monotonic() - begin)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_each_moment_of_the_end_it_is_finished_by_resume(bench):
    """The index, the flushes, the journal, every name, and the removal of the work folder after the last."""
    (bench.folder / "docs.jsonl").write_text("".join((bench.folder / "docs.jsonl").open().readlines()[:50]))
    bench.run("docs.jsonl", output="short", **OPTIONS)
    killed, exitcode = 0, None
    while exitcode != 0:
        process = multiprocessing.get_context("fork").Process(target=work, args=(bench, "end", killed + 1))
        process.start()
        process.join(60)
        exitcode = process.exitcode
        assert exitcode in (-signal.SIGKILL, 0)
        killed += exitcode != 0
        bench.run("docs.jsonl", **OPTIONS)
        check(bench, "short")
        remove_output(bench)
    assert killed > 40


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [2, 3])
def test_killed_twenty_times_and_resumed_it_is_the_same(bench, seed):
    kills = random.Random(seed).sample(["start", "middle", "end", "time"] * 6, 20)
    assert sum(killed_and_resumed(bench, kills, seed=seed).values()) >= 10
