"""Chunks through the workers into the files, with a journal every so often."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from gooseslo.data.indexed.sidecar import Sidecar
from gooseslo.data.preprocess.chunks import Placed, Position
from gooseslo.data.preprocess.encoding import Encoding
from gooseslo.data.preprocess.folder import Journal, Tally, WorkFolder, writing
from gooseslo.data.preprocess.pool import Pool
from gooseslo.data.preprocess.work import Rejected
from gooseslo.data.preprocess.writer import TokenWriter
from gooseslo.errors import DataError

_REJECTED_SHOWN = 20
_JOURNAL_SECONDS = 0.5
_JOURNAL_SHARE = 0.02
"""Of the time, that may go into waiting for the disk."""


@dataclass
class Rejections:
    """What happens to records without a text."""

    fails: bool
    """The first of them ends the run."""
    way_out: str = "on_error=skip leaves such records out"
    shown: list[str] = field(default_factory=list)
    """The first of this process."""

    def check(self, name: str, rejected: list[Rejected]) -> None:
        """DataError for the first, where it is to fail."""
        if rejected and self.fails:
            first = rejected[0]
            way_out = "; ".join(filter(None, (first.way_out, self.way_out)))
            raise DataError(f"input: {name}, {first.place}: {first.rule}" + (f"\n  {way_out}" if way_out else ""))

    def show(self, name: str, rejected: list[Rejected]) -> None:
        """Note what was left out."""
        room = _REJECTED_SHOWN - len(self.shown)
        self.shown += [f"{name}, {each.place}: {each.rule}" for each in rejected[:room]]


@dataclass(frozen=True, kw_only=True)
class Tokeniser:
    """From chunks to the files of a work folder."""

    folder: WorkFolder
    encoding: Encoding
    rejections: Rejections
    num_workers: int
    resumable: bool
    """Whether the chunks can be read again from a position on."""

    def run(
        self,
        chunks: Iterator[Placed],
        journal: Journal,
        *,
        text_key: str,
        on_progress: Callable[[Placed, Tally], None],
        sidecar: Callable[[Journal], Sidecar],
    ) -> Journal:
        """Write the documents of `chunks` after those of `journal`; returns the journal of all, ready to be published.

        DataError for a record that is wrong and where there is no document at all, DataWriteError, WorkerError.
        """
        folder, prefix = self.folder, self.folder.prefix
        with writing(prefix, resumable=self.resumable):
            writer = TokenWriter(
                folder,
                dtype=self.encoding.dtype,
                eod_token_id=self.encoding.eod_token_id,
                tally=journal.tally,
                sizes=journal.sizes,
            )
        keeper = _JournalKeeper(folder, journal, writer)
        with writer, Pool(self.encoding.task(text_key), num_workers=self.num_workers) as pool:
            for placed, encoded in pool.encode(chunks):
                self.rejections.check(placed.name, encoded.rejected)
                with writing(prefix, resumable=self.resumable):
                    self.rejections.show(placed.name, writer.add(placed, encoded))
                    if self.resumable:
                        keeper.keep(placed.end)
                on_progress(placed, writer.tally)
            if writer.tally.documents == 0:
                folder.remove()
                raise DataError(f"input: it holds no document: {_what_there_was(writer.tally)}")
            with writing(prefix, resumable=self.resumable):
                done = keeper.current(finished=True)
                writer.finish(sidecar(done))
                folder.write_journal(done)
            return done


class _JournalKeeper:
    """Writes the journal as often as it costs next to nothing."""

    def __init__(self, folder: WorkFolder, journal: Journal, writer: TokenWriter):
        self._folder, self._journal, self._writer = folder, journal, writer
        self._began = time.monotonic()
        self._due: float | None = None

    def keep(self, position: Position) -> None:
        """Note that everything up to `position` is written, if it is time to."""
        begin = time.monotonic()
        if self._due is None:  # until here the workers were starting
            self._due = begin + _JOURNAL_SECONDS
        if begin < self._due or not self._writer.is_between_documents:
            return
        self._writer.flush()
        self._folder.write_journal(replace(self.current(), position=position))
        now = time.monotonic()
        self._due = now + max(_JOURNAL_SECONDS, (now - begin) / _JOURNAL_SHARE)

    def current(self, *, finished: bool = False) -> Journal:
        """Of what is written, with the position still that of the start."""
        seconds = self._journal.seconds + time.monotonic() - self._began
        writer = self._writer
        return replace(self._journal, tally=writer.tally, sizes=writer.sizes, seconds=seconds, finished=finished)


def _what_there_was(tally: Tally) -> str:
    return f"{tally.empty} empty and {tally.rejected} rejected records"
