"""What the user sees of a run, on a terminal and off it."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import select
import shlex
import struct
import termios
from pathlib import Path

import pytest
from gooseslo.engine.report import Reporter, summary

from gooseslo.engine.metrics import eval_record, save_record
from gooseslo.schema.compose import compose_merge


def train(step, *, loss=5.0, seconds=0.5, skipped=False):
    return {
        "kind": "train",
        "step": step,
        "loss": loss,
        "lr": 3e-4,
        "grad_norm": 0.8125,
        "consumed_tokens": 1000 * step,
        "step_seconds": seconds,
        "tokens_per_second": 12345.6,
        "mfu": None,
        "skipped": skipped,
    }


@pytest.fixture
def terminal():
    """A stream that is a terminal of 60 columns, and a function that gives what was written to it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    stream = os.fdopen(theirs, "w", buffering=1, encoding="utf-8")

    def written():
        stream.flush()
        parts = []
        while select.select([ours], [], [], 0.1)[0]:  # a terminal gives its text in pieces
            parts.append(os.read(ours, 1 << 16))
        return b"".join(parts).decode()

    yield stream, written
    stream.close()
    os.close(ours)


def plain(num_steps, records, clock=lambda: 0.0):
    stream = io.StringIO()
    with Reporter(stream, num_steps=num_steps, clock=clock) as report:
        for record in records:
            report(record)
    return stream.getvalue().splitlines()


def test_off_a_terminal_there_are_plain_lines():
    lines = plain(
        100,
        [
            *(train(step) for step in range(1, 51)),
            eval_record(step=50, split="valid", loss=4.0, samples=8),
            save_record(step=50, path=Path("runs/x/checkpoints/step-00000050")),
        ],
    )
    assert lines[1] == "step 10/100  loss 5.0000  lr 3.00e-04  grad norm 0.812  12,346 tokens/s  45s left"
    assert [line.split()[1] for line in lines[:6]] == ["1/100", "10/100", "20/100", "30/100", "40/100", "50/100"]
    assert lines[6:] == [
        "step 50: valid loss 4.0000, perplexity 54.60",
        "step 50: saved runs/x/checkpoints/step-00000050",
    ]
    assert not any("\x1b" in line for line in lines)


def test_short_and_slow_runs_have_a_line_for_each_step():
    assert len(plain(5, [train(step) for step in range(1, 6)])) == 5
    ticks = iter(range(0, 10_000, 60))
    assert len(plain(100, [train(step) for step in range(1, 6)], clock=lambda: next(ticks))) == 5


def test_a_skipped_step_is_said_so_in_both_modes(terminal):
    assert "step 13/100  skipped: the gradient is not finite" in plain(100, [train(1), train(13, skipped=True)])[1]
    stream, written = terminal
    with Reporter(stream, num_steps=100) as report:
        report(train(13, skipped=True))
    assert "step 13: skipped: the gradient is not finite" in written()


def test_on_a_terminal_the_display_is_drawn_over_and_events_stay(terminal):
    stream, written = terminal
    report = Reporter(stream, num_steps=100)
    report(train(1, loss=9.0))
    report(eval_record(step=1, split="valid", loss=4.0, samples=8))
    report(train(2, loss=8.0, seconds=60.0))
    shown = written()
    assert "step 1/100" in shown and "loss 9.0000" in shown and "step 2/100" in shown and "loss 8.0000" in shown
    assert "last evaluation: step 1: valid loss 4.0000" in shown
    assert "\x1b[?25l" in shown and "\x1b[2K" in shown
    report.close()
    assert "\x1b[?25h" in written()


def test_without_a_console_nothing_is_shown():
    with Reporter(None, num_steps=10) as report:
        report(train(1))


def test_the_summary_tells_what_the_run_came_to(tmp_path):
    records = [train(1, loss=9.0), train(2, loss=8.0), eval_record(step=2, split="valid", loss=7.5, samples=8)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    text = summary(tmp_path)
    assert text.splitlines() == [
        "2 steps, 2,000 tokens, 12,346 tokens/s; loss 9.0000 at step 1, 8.0000 at the end",
        "step 2: valid loss 7.5000, perplexity 1,808.04",
        f"run folder: {tmp_path}",
    ]
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest").write_text("step-00000002")
    assert summary(tmp_path).splitlines()[-1] == (
        f"next: gooseslo merge-checkpoint input={tmp_path} output={tmp_path / 'merged'}"
    )


def test_the_command_for_what_comes_next_can_be_pasted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("my run; $(honk)", "[a]", "It's"):
        run_dir = Path(name)
        (run_dir / "checkpoints").mkdir(parents=True)
        (run_dir / "checkpoints" / "latest").write_text("step-00000002")
        (run_dir / "metrics.jsonl").write_text("")
        command = shlex.split(summary(run_dir).splitlines()[-1].removeprefix("next: "))
        job = compose_merge(command[2:])
        assert command[:2] == ["gooseslo", "merge-checkpoint"]
        assert (job.input, job.output) == (name, f"{name}/merged")
