"""The command as a process: `gooseslo`, or `python -m gooseslo`."""

import signal
import sys

from gooseslo.cli import main


def command() -> int:
    """Run the command line; the exit code is settled when it is done.

    The interpreter takes most of a second to close after a run. A signal in that time has nothing left to save or to
    stop, and would only make a run that is done look like one that was killed.
    """
    exit_code = main()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return exit_code


if __name__ == "__main__":
    sys.exit(command())
