"""`python -m gooseslo` is `gooseslo`."""

import sys

from gooseslo.cli import main

if __name__ == "__main__":
    sys.exit(main())
