"""`python -m gooseslo` is `gooseslo`."""

import sys

from gooseslo.cli import command

if __name__ == "__main__":
    sys.exit(command())
