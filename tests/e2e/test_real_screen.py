"""The live display in a real terminal, tmux's: nothing wraps, and a change of size leaves it whole."""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed (apt-get install tmux)")

RECORDS = """
import math, sys, time
from gooseslo.engine.display.reporter import Reporter
with Reporter(sys.stdout, num_steps=1000) as report:
    for step in range(1, 1001):
        report({
            "kind": "train", "step": step, "loss": 2 + 8 * math.exp(-step / 60), "lr": 3e-4, "grad_norm": 0.8125,
            "step_seconds": 0.5, "data_wait_seconds": 0.0004, "tokens_per_second": 12345.6, "mfu": 0.4123,
            "memory_bytes": 1.234e9, "skipped": False, "stage_seconds": [0.2, 0.3],
        })
        if step % 40 == 0:
            report({"kind": "eval", "step": step, "split": "valid", "loss": 4.0, "perplexity": 54.6, "samples": 8})
        time.sleep(0.05)
"""


class Tmux:
    """One window of a server of our own; its socket lies in a short path, as sockets must."""

    def __init__(self, folder):
        self.socket = str(Path(folder) / "tmux")

    def __call__(self, *args):
        return subprocess.run(
            ["tmux", "-S", self.socket, "-f", "/dev/null", *args], capture_output=True, text=True, timeout=20
        )

    def start(self, command, *, columns, rows=30, env=()):
        settings = [part for name, value in env for part in ("-e", f"{name}={value}")]
        done = self("new-session", "-d", "-x", str(columns), "-y", str(rows), *settings, f"{command}; sleep 600")
        assert done.returncode == 0, done.stderr

    def screen(self):
        """The lines of the screen; a wrapped one counts as several, as a user sees it."""
        return [line for line in self("capture-pane", "-p").stdout.splitlines() if line.strip()]

    def wait_for(self, pattern, seconds=30):
        deadline = time.monotonic() + seconds
        while not re.search(pattern, "\n".join(self.screen()), re.MULTILINE):
            assert time.monotonic() < deadline, "\n".join(self.screen())
            time.sleep(0.1)
        return self.screen()


@pytest.fixture
def tmux():
    with tempfile.TemporaryDirectory(prefix="tmux-") as folder:
        made = Tmux(folder)
        yield made
        made("kill-server")


def block(columns, num_numbers):
    """The display's lines, each from its beginning to its end."""
    width = columns - 1
    progress, loss = r"step \d+/\d+ [━─]+ +\d+%( .* left)?", r"loss \d+\.\d{4}  [▁-█]+.*"
    lines = [progress, loss, r"lr .*", *[r"[a-z].*"] * (num_numbers - 1), r"stage 0 [━─]+ .* ms  stage 1 [━─]+ .* ms"]
    return (
        lines if width >= 120 else [*lines, r"(last evaluation:  )?step \d+: valid loss \d\.\d{4}, perplexity [\d,.]+"]
    )


def assert_whole(screen, columns, num_numbers):
    """The last lines are the display, whole, and used to the last column but one."""
    expected = block(columns, num_numbers)
    shown = screen[-len(expected) :]
    for line, pattern in zip(shown, expected, strict=True):
        assert re.fullmatch(pattern, line), "\n".join(screen)
    assert len(shown[0]) == columns - 1


def test_it_fits_the_terminal_and_survives_a_change_of_its_size(tmux):
    command = shlex.join([sys.executable, "-c", RECORDS])
    tmux.start(command, columns=80, env=[("PYTHONPATH", str(Path(__file__).parents[2]))])
    tmux.wait_for("last evaluation:  step 40")
    assert_whole(tmux.screen(), 80, 2)
    for columns, num_numbers in ((160, 1), (60, 2), (120, 1), (80, 2)):
        tmux("resize-window", "-x", str(columns))
        time.sleep(1.0)  # tmux tells programs of a new size with a delay
        assert_whole(tmux.screen(), columns, num_numbers)
    steps = [int(line.split("/")[0].split()[1]) for line in tmux.screen() if line.startswith("step ") and "━" in line]
    assert 40 < steps[-1] < 1000 and len(steps) == len(set(steps))


@pytest.mark.slow
@pytest.mark.parametrize("columns, num_numbers", [(80, 2), (160, 1)])
def test_a_run_in_a_real_terminal(columns, num_numbers, tmux, shell, small):
    sizes = ["train.steps=60", "train.eval_every=20", "parallel.pp=2", "run.name=run"]
    command = shlex.join([sys.executable, "-m", "gooseslo", "train", *small, *sizes])
    tmux.start(
        f"cd {shlex.quote(str(shell.folder))}; {command}", columns=columns, rows=50, env=shell.environment.items()
    )
    screen = tmux.wait_for(r"^merge  ", seconds=90)
    end = next(index for index, line in enumerate(screen) if line.startswith("run  "))
    assert_whole(screen[:end], columns, num_numbers)
    kept = [line for line in screen if re.match(r"step \d+: ", line)]
    assert [line.split(":")[0] for line in kept] == ["step 20", "step 40", "step 60", "step 60"]
    assert tmux("display-message", "-p", "#{cursor_flag}").stdout.strip() == "1"
