"""Lines at the foot of a terminal that are drawn over in place, with other text going above them.

Each drawing is one write that puts the new text over the old and erases only what is left over, so nothing flickers.
Nobody listens for a change of size: it is asked for at each drawing. A terminal that tells of its new size late may
keep a piece of a drawing made in between; the next one stands whole below it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.text import Text

_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_ERASE_LINE_END, _ERASE_BELOW = "\x1b[K", "\x1b[J"
_DEFAULT_SIZE = (80, 24)


def can_draw(stream: TextIO) -> bool:
    """Whether the stream is a terminal that understands more than plain text."""
    return stream.isatty() and not Console(file=stream, force_terminal=True).is_dumb_terminal


class Screen:
    """Owns the last lines of the terminal until it is closed."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        # standard output is the rank's log by now, so rich would measure that instead of the terminal
        self._console = Console(file=stream, force_terminal=True, width=_DEFAULT_SIZE[0], highlight=False)
        self._widths: list[int] = []
        """Of the lines that stand there now, in cells."""
        self._write(_HIDE_CURSOR)

    @property
    def width(self) -> int:
        """Cells that a line may take: the last column stays free, as some terminals wrap when it is written."""
        return self._size()[0] - 1

    def draw(self, lines: Sequence[Text], *, above: Text | None = None) -> None:
        """Put these lines in place of the last ones; what is too long or too much is cut off.

        `above` is a text that stays above them; it may be longer than the terminal is wide.
        """
        columns, rows = self._size()
        start = _to_first_row(self._widths, columns)
        if above is not None:
            start += f"{_ERASE_BELOW}{self._styled(above, width=max(1, above.cell_len))}\n"
        width, kept = columns - 1, list(lines)[: max(1, rows - 1)]
        self._widths = [min(width, line.cell_len) for line in kept]
        drawn = "".join(f"{self._styled(line, width=width)}{_ERASE_LINE_END}\n" for line in kept)
        self._write(start + drawn + _ERASE_BELOW)

    def close(self) -> None:
        """Leave the last lines where they are, and give the cursor back below them."""
        self._write(_SHOW_CURSOR)

    def _styled(self, line: Text, *, width: int) -> str:
        self._console.width = width
        with self._console.capture() as capture:
            self._console.print(line, end="", no_wrap=True, overflow="crop", crop=True)
        return capture.get()

    def _size(self) -> tuple[int, int]:
        columns, rows = os.get_terminal_size(self._stream.fileno())
        return max(2, columns or _DEFAULT_SIZE[0]), rows or _DEFAULT_SIZE[1]

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _to_first_row(widths: Sequence[int], columns: int) -> str:
    """Back up over lines of these widths. A terminal that became narrower has wrapped them: they take more rows."""
    rows = sum(max(1, -(-width // columns)) for width in widths)
    return f"\x1b[{rows}A\r" if rows else ""
