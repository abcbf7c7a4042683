"""Processes as the kernel shows them, for the tests that end them."""

import time
from pathlib import Path


def children(parent):
    """The process's children by order of start, none once it has ended; of a command that trains, workers by rank."""
    try:
        return sorted(int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
    except FileNotFoundError:
        return []


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
