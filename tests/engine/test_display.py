"""What the user sees of a run, on a terminal and off it: what it says, that it fits, and that it is drawn over."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import struct
import termios
from pathlib import Path

import pytest
from rich.console import Console, Group

from gooseslo.engine.display.curve import LossCurve, sparkline
from gooseslo.engine.display.live import View, flow, render
from gooseslo.engine.display.reporter import Reporter
from gooseslo.engine.display.wording import duration, memory, short_time
from gooseslo.engine.metrics import eval_record, save_record, warning_record


def train(step, *, loss=5.0, seconds=0.5, skipped=False, stages=(0.45,), mfu=None):
    return {
        "kind": "train",
        "step": step,
        "loss": loss,
        "lr": 3e-4,
        "grad_norm": 0.8125,
        "consumed_tokens": 1000 * step,
        "step_seconds": seconds,
        "data_wait_seconds": 0.0004,
        "tokens_per_second": 12345.6,
        "mfu": mfu,
        "memory_bytes": 1_234_000_000,
        "skipped": skipped,
        "stage_seconds": list(stages),
    }


class Terminal:
    """A terminal of so many columns and rows: the stream to write to, and what its screen then shows."""

    def __init__(self, columns, rows):
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.stream = os.fdopen(theirs, "w", buffering=1, encoding="utf-8")
        self.lines, self.row, self.column, self.cursor = [""], 0, 0, True
        self.writes = []

    def read(self):
        self.stream.flush()
        parts = []
        while select.select([self.ours], [], [], 0.05)[0]:  # a terminal gives its text in pieces
            parts.append(os.read(self.ours, 1 << 16))
        text = b"".join(parts).decode()
        for escape, text_part in re.findall(r"(\x1b\[\??[0-9;]*[A-Za-z])|([^\x1b]+)", text):
            self._control(escape) if escape else self._put(text_part)
        return text

    def _put(self, text):
        for character in text:
            if character == "\n":
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif character == "\r":
                self.column = 0
            else:
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
                self.column += 1

    def _control(self, escape):
        number, letter = escape[2:-1], escape[-1]
        if letter == "A":
            assert self.row >= int(number), "above the first line"
            self.row -= int(number)
        elif letter == "K":
            self.lines[self.row] = self.lines[self.row][: self.column]
        elif letter == "J":
            self.lines[self.row] = self.lines[self.row][: self.column]
            del self.lines[self.row + 1 :]
        elif number == "?25":
            self.cursor = letter == "h"
        else:
            assert letter == "m", escape

    @property
    def shown(self):
        self.read()
        return [line.rstrip() for line in self.lines if line.strip()]

    def close(self):
        self.stream.close()
        os.close(self.ours)


@pytest.fixture
def terminal():
    made = []

    def make(columns=80, rows=24):
        made.append(Terminal(columns, rows))
        return made[-1]

    yield make
    for each in made:
        each.close()


def plain(num_steps, records, clock=lambda: 0.0, progress=True):
    stream = io.StringIO()
    with Reporter(stream, num_steps=num_steps, clock=clock, progress=progress) as report:
        for record in records:
            report(record)
    return stream.getvalue().splitlines()


def view(*, num_stages=2, evaluation=True, steps=120):
    curve = LossCurve()
    for step in range(steps):
        curve.add(10.0 - step / 20)
    record = train(steps, loss=4.25, mfu=0.4123, stages=[0.2 + 0.01 * stage for stage in range(num_stages)])
    held_out = eval_record(step=100, split="valid", loss=4.0, samples=8) if evaluation else None
    return View(record=record, num_steps=200, time_left="1m20s left", curve=curve, evaluation=held_out)


def on_console(lines, width):
    """The lines as a rich console of that width writes them into memory."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True)
    console.print(Group(*lines))
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue()).splitlines()


# Off a terminal


def test_off_a_terminal_there_are_plain_lines():
    lines = plain(
        100,
        [
            *(train(step) for step in range(1, 51)),
            eval_record(step=50, split="valid", loss=4.0, samples=8),
            save_record(step=50, path=Path("runs/x/checkpoints/step-00000050")),
            warning_record("the goose has flown"),
        ],
    )
    assert lines[1] == (
        "step 10/100  loss 5.0000  lr 3.00e-04  grad norm 0.812  12,346 tokens/s  step 500 ms  data wait 0.4 ms  "
        "memory 1.23 GB  compute 450 ms  45s left"
    )
    assert [line.split()[1] for line in lines[:6]] == ["1/100", "10/100", "20/100", "30/100", "40/100", "50/100"]
    assert lines[6:] == [
        "step 50: valid loss 4.0000, perplexity 54.60",
        "step 50: saved runs/x/checkpoints/step-00000050",
        "warning: the goose has flown",
    ]
    assert not any("\x1b" in line for line in lines)


def test_the_evaluation_of_a_classifier_says_its_accuracy():
    held_out = eval_record(step=50, split="valid", loss=0.25, samples=8, accuracy=0.875)
    assert plain(100, [held_out]) == ["step 50: valid loss 0.2500, accuracy 87.50%"]


def test_short_and_slow_runs_have_a_line_for_each_step():
    assert len(plain(5, [train(step) for step in range(1, 6)])) == 5
    ticks = iter(range(0, 10_000, 60))
    assert len(plain(100, [train(step) for step in range(1, 6)], clock=lambda: next(ticks))) == 5


def test_a_skipped_step_is_said_so_in_both_modes(terminal):
    assert plain(100, [train(1), train(13, skipped=True)])[1] == "step 13: skipped: the gradient is not finite"
    screen = terminal()
    with Reporter(screen.stream, num_steps=100) as report:
        report(train(13, loss=float("nan"), skipped=True))
        assert screen.shown[0] == "step 13: skipped: the loss is not finite"
        assert screen.shown[2] == "loss not finite"


def test_an_overflow_of_fp16_is_not_called_bad():
    line = {**train(3, skipped=True), "overflow": True, "loss_scale": 32768.0}
    said = "step 3: skipped: the gradient is too large for fp16; the loss scale is 32768 from now on"
    assert plain(100, [train(1), line])[1] == said


def test_without_progress_only_warnings_are_shown():
    records = [train(1), eval_record(step=1, split="valid", loss=4.0, samples=8), save_record(step=1, path=Path("x"))]
    assert plain(1, [*records, warning_record("no server")], progress=False) == ["warning: no server"]


def test_without_a_console_nothing_is_shown():
    with Reporter(None, num_steps=10) as report:
        report(train(1))


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    screen = terminal()
    with Reporter(screen.stream, num_steps=1) as report:
        report(train(1))
    assert "\x1b" not in screen.read()


# On a terminal


@pytest.mark.parametrize("num_stages", [1, 2, 4, 16, 64])
@pytest.mark.parametrize("width", [20, 40, 79, 80, 119, 120, 160, 240])
def test_every_line_fits_and_none_is_wrapped(width, num_stages):
    lines = render(view(num_stages=num_stages), width)
    assert all(line.cell_len <= width for line in lines)
    assert on_console(lines, width) == [line.plain for line in lines]


def test_80_columns_show_everything():
    shown = on_console(render(view(), 80), 80)
    assert len(shown) == 6
    assert re.fullmatch(r"step 120/200 ━+─+  60%  1m20s left", shown[0])
    assert re.fullmatch(r"loss 4\.2500  █[▁▂▃▄▅▆▇█]+▁", shown[1])
    numbers = "lr 3.00e-04  grad norm 0.812  12,346 tokens/s  mfu 41.2%  step 500 ms  data wait 0.4 ms  memory 1.23 GB"
    assert "  ".join(shown[2:4]) == numbers
    assert re.fullmatch(r"stage 0 ━+─+ 200 ms  stage 1 ━+─+ 210 ms", shown[4])
    assert shown[5] == "last evaluation:  step 100: valid loss 4.0000, perplexity 54.60"


def test_160_columns_are_used():
    """Fewer, longer lines: all numbers in one, the evaluation beside the curve, and the bars over the whole width."""
    narrow, wide = (on_console(render(view(), width), width) for width in (80, 160))
    assert len(wide) == 4
    assert re.fullmatch(r"loss 4\.2500  [▁-█]{80,}  last evaluation:  step 100: valid loss 4\.0000, .*", wide[1])
    assert wide[2] == "  ".join(narrow[2:4])
    assert all(len(line) == 160 for line in (wide[0], wide[1])) and len(wide[3]) >= 158
    assert all(len(line) == 80 for line in (narrow[0], narrow[1])) and len(narrow[4]) >= 78


def test_the_time_of_each_stage_is_its_share_of_the_step():
    shown = on_console(render(view(num_stages=4), 160), 160)[-1]
    bars = re.findall(r"stage \d (━+)(─+) (\d+) ms", shown)
    assert [int(time) for *_, time in bars] == [200, 210, 220, 230]
    for full, rest, time in bars:
        assert len(full) / len(full + rest) == pytest.approx(int(time) / 500, abs=0.03)
    assert "stages  0: 200 ms  1: 210 ms" in on_console(render(view(num_stages=5), 80), 80)[4]
    many = on_console(render(view(num_stages=64), 80), 80)[4]
    assert many == "64 stages: 63 computes longest, 830 ms; 0 least, 200 ms"


def test_one_stage_has_its_time_among_the_numbers():
    assert "compute 200 ms" in " ".join(on_console(render(view(num_stages=1), 80), 80))


def test_it_is_drawn_over_in_place_and_events_stay_above(terminal):
    screen = terminal(80, 24)
    report = Reporter(screen.stream, num_steps=100, clock=iter(range(1000)).__next__)
    report(train(1, loss=9.0, stages=(0.1, 0.2)))
    assert [line.split()[0] for line in screen.shown] == ["step", "loss", "lr", "memory", "stage"]
    report(eval_record(step=1, split="valid", loss=4.0, samples=8))
    report(warning_record("honk"))
    report(save_record(step=1, path=Path("/" + "very-long/" * 12)))
    report(train(2, loss=8.0, seconds=60.0, stages=(0.1, 0.2)))
    shown = screen.shown
    assert shown[:2] == ["step 1: valid loss 4.0000, perplexity 54.60", "warning: honk"]
    assert shown[2].startswith("step 1: saved /very-long/very-long/")  # whole: the terminal wraps it
    assert [line.split()[0] for line in shown[3:]] == ["step", "loss", "lr", "memory", "stage", "last"]
    assert shown[3].startswith("step 2/100 ") and shown[4].startswith("loss 8.0000 ")
    assert sum("loss" in line and "valid" not in line for line in shown) == 1
    assert not screen.cursor
    report.close()
    assert screen.shown == shown and screen.cursor


def test_a_shorter_line_leaves_nothing_of_the_longer_one(terminal):
    screen = terminal()
    with Reporter(screen.stream, num_steps=10**6, clock=iter(range(1000)).__next__) as report:
        report({**train(1), "tokens_per_second": 12345.0, "memory_bytes": 123.0})
        before = screen.shown
        report({**train(2), "tokens_per_second": 1.0, "memory_bytes": 1.0})
        assert len(screen.shown[2]) < len(before[2]) and len(screen.shown[3]) < len(before[3])
        assert screen.shown[2:] == [
            "lr 3.00e-04  grad norm 0.812  1 tokens/s  step 500 ms  data wait 0.4 ms",
            "memory 1 B  compute 450 ms",
        ]


def test_a_drawing_erases_no_line_before_it_is_written_again(terminal):
    """What is erased first and then written flickers: only the ends of lines and what is below are erased."""
    screen = terminal()
    with Reporter(screen.stream, num_steps=10, clock=iter(range(1000)).__next__) as report:
        report(train(1))
        screen.read()
        report(train(2))
        text = re.sub(r"\x1b\[[0-9;]*m", "", screen.read())
    assert text.startswith("\x1b[4A\rstep 2/10")
    assert all(line.endswith("\x1b[K\r") for line in text.split("\n")[:-1]) and text.endswith("\n\x1b[J")
    assert "\x1b[2K" not in text and "\x1b[2J" not in text


def test_fast_steps_are_not_all_drawn_but_the_last_one_is(terminal):
    screen, times = terminal(), iter([0.0, 0.0, *(0.001 * step for step in range(1, 1000))])
    report, written = Reporter(screen.stream, num_steps=60, clock=lambda: next(times)), ""
    for step in range(1, 61):
        report(train(step))
        if step % 5 == 0:  # nobody writes into a terminal that is not read
            written += screen.read()
    assert written.count("loss 5.0000") == 1 and screen.shown[0].startswith("step 1/60")
    report.close()
    assert screen.shown[0].startswith("step 60/60")


def test_a_new_width_is_seen_at_the_next_drawing(terminal):
    screen = terminal(100)
    with Reporter(screen.stream, num_steps=10, clock=iter(range(1000)).__next__) as report:
        report(train(1))
        assert len(screen.shown[0]) == 99
        fcntl.ioctl(screen.stream.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 24, 45, 0, 0))
        report(train(2))
        # its three long lines (99, 99 at most and 75 or more) now stand in more rows each
        rows = int(re.match(r"\x1b\[(\d+)A", screen_text := _raw(screen))[1])
        assert rows > 4 and "step 2/10" in screen_text
        report(train(3))
        assert max(len(line) for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", _raw(screen)).split("\r\n")) <= 45


def _raw(screen):
    """What was written since, without following it: this terminal does not wrap again what stands there."""
    parts = []
    screen.stream.flush()
    while select.select([screen.ours], [], [], 0.05)[0]:
        parts.append(os.read(screen.ours, 1 << 16))
    return b"".join(parts).decode()


def test_a_terminal_with_few_rows_shows_what_fits(terminal):
    screen = terminal(80, 4)
    with Reporter(screen.stream, num_steps=10, clock=iter(range(1000)).__next__) as report:
        for step in range(1, 4):
            report(train(step))
        assert [line.split()[0] for line in screen.shown] == ["step", "loss", "lr"]


# Words


def test_the_curve_keeps_its_shape_and_a_bounded_size():
    curve = LossCurve()
    for step in range(100_000):
        curve.add(100_000.0 - step)
    curve.add(float("nan"))
    points = curve.points(50)
    assert len(curve._points) <= 512 and len(points) == 50
    assert points == sorted(points, reverse=True) and points[0] > 97_000 and points[-1] < 3_000
    assert sparkline(points)[0] == "█" and sparkline(points)[-1] == "▁" and len(sparkline(points)) == 50
    assert sparkline([]) == "" and sparkline([3.0, 3.0]) == "▁▁"


def test_parts_flow_into_as_few_lines_as_hold_them():
    assert flow(["aaa", "bbb", "cc"], 8) == ["aaa  bbb", "cc"]
    assert flow(["aaa", "bbb", "cc"], 12) == ["aaa  bbb  cc"]
    assert flow(["a" * 20, "b"], 8) == ["a" * 20, "b"]


def test_times_and_sizes_are_short():
    assert [short_time(seconds) for seconds in (0.0004, 0.0123, 0.5, 2.345, 61.0)] == [
        "0.4 ms", "12 ms", "500 ms", "2.35 s", "61.0 s",
    ]  # fmt: skip
    assert [duration(seconds) for seconds in (0.2, 75, 7500, 300_000)] == ["1s", "1m15s", "2h05m", "3d11h"]
    assert [memory(size) for size in (512, 1_234_000_000, 999_700_000, 141e9)] == [
        "512 B", "1.23 GB", "1000 MB", "141 GB",
    ]  # fmt: skip
