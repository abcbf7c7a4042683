"""What is said of a data set that was just made."""

from __future__ import annotations

import shlex
from pathlib import Path

from gooseslo.data.indexed.names import rejected_path
from gooseslo.data.preprocess.folder import Journal, existing_output
from gooseslo.data.preprocess.progress import duration


def summary_lines(output: str, prefix: Path, journal: Journal, rejected: list[str]) -> list[str]:
    """Counts, speed, what was left out, and the files."""
    tally = journal.tally
    speed = f"{tally.text_bytes / max(journal.seconds, 1e-9) / 1e6:.1f} MB/s"
    lines = [
        f"{output}: {tally.documents:,} documents, {tally.tokens:,} tokens, {tally.empty:,} empty, "
        f"{tally.rejected:,} rejected, in {duration(journal.seconds)} ({speed})"
    ]
    if rejected:
        lines += [f"  {each}" for each in rejected]
        more = tally.rejected - len(rejected)
        lines += [f"  and {more:,} more, all in {rejected_path(prefix).name}"] if more > 0 else []
    if tally.inner_eods:
        lines.append(f"  note: {tally.inner_eods:,} end-of-document ids stand within documents, whose text spells them")
    folder = Path(output).parent
    return [*lines, "  " + "  ".join(shlex.quote(str(folder / path.name)) for path in existing_output(prefix))]
