"""Where the parent's signal handler may raise, and where it may not."""

import inspect
import logging
import signal
from types import SimpleNamespace

import pytest

from gooseslo.engine import launcher


def test_in_a_hook_of_fork_nothing_is_raised_and_the_workers_end_all_the_same(tmp_path):
    """Python prints what such a hook raises, and goes on."""
    condemned = []
    watchdog = SimpleNamespace(condemn=lambda: condemned.append(True))
    spec = SimpleNamespace(shutdown_seconds=1)
    hook = SimpleNamespace(f_code=getattr(logging, "_releaseLock", None) and logging._releaseLock.__code__)
    if hook.f_code is not None:  # Python 3.13 has hooks in C
        launcher._Interruption(spec, watchdog, tmp_path).on_signal(signal.SIGINT, hook)
        assert condemned == [True]
    with pytest.raises(launcher._Ended):
        launcher._Interruption(spec, watchdog, tmp_path).on_signal(signal.SIGINT, inspect.currentframe())
    assert condemned[-1]
