"""Where the parent's signal handler may raise, and where it may not."""

import os
import signal
import sys
from multiprocessing import get_context
from types import SimpleNamespace

import pytest

from gooseslo.engine import launcher


def test_in_a_hook_of_fork_nothing_is_raised_and_the_workers_end_all_the_same(tmp_path, monkeypatch):
    """Python prints what such a hook raises, and goes on."""
    condemned, armed, lost = [], [True], []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    watchdog = SimpleNamespace(condemn=lambda: condemned.append(True))
    interruption = launcher._Interruption(SimpleNamespace(shutdown_seconds=1), watchdog, tmp_path)

    def hook():
        if armed:
            interruption.on_signal(signal.SIGINT, sys._getframe())

    os.register_at_fork(after_in_parent=hook)
    child = get_context("fork").Process(target=os._exit, args=(0,))
    child.start()
    child.join()
    armed.clear()
    assert condemned == [True] and lost == []
    with pytest.raises(launcher._Ended):
        launcher._Interruption(SimpleNamespace(shutdown_seconds=1), watchdog, tmp_path).on_signal(
            signal.SIGINT, sys._getframe()
        )
