"""`gooseslo preprocess input=...`: find, check, tokenise on all cores, publish; goes on where a killed run stopped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import tokenizers
from transformers import PreTrainedTokenizerBase

from gooseslo.data.indexed.layout import read_index_of
from gooseslo.data.indexed.names import bin_path, idx_path, stored_name, tokenizer_path
from gooseslo.data.indexed.sidecar import Sidecar, SourceFile
from gooseslo.data.preprocess import encoding
from gooseslo.data.preprocess.chunks import Position, ReadOptions, read_chunks
from gooseslo.data.preprocess.columns import check_column
from gooseslo.data.preprocess.encoding import Encoding
from gooseslo.data.preprocess.folder import Journal, WorkFolder, existing_output, writing
from gooseslo.data.preprocess.inputs import Source, find_sources
from gooseslo.data.preprocess.progress import ProgressReport
from gooseslo.data.preprocess.summary import summary_lines
from gooseslo.data.preprocess.tokenise import Rejections, Tokeniser
from gooseslo.data.preprocess.work import texts_of
from gooseslo.data.tokenizers.tokenizer import train_tokenizer
from gooseslo.errors import DataError, WorkerError
from gooseslo.staging import staged_folder

_BYTES_PER_WORKER = 1 << 18
"""Of less input a further worker would start for nothing."""
_FINISHED = "output={}: finished already\n"


@dataclass(frozen=True, kw_only=True)
class Request:
    """The keys of the verb, as they were given."""

    input: Any
    output: str
    tokenizer: str | None = None
    train_tokenizer: int | None = None
    text_key: str = "text"
    format: str | None = None
    document: str = "line"
    append_eod: bool = True
    eod_token: str | None = None
    special_tokens: str = "plain"
    backend: str = "auto"
    workers: int | None = None
    chunk_size: int = 1024
    resume: bool = False
    on_error: str = "fail"


def preprocess(request: Request, *, base_dir: Path, out: TextIO, err: TextIO) -> None:
    """Write the token files of `output`; progress goes to `err`, what was made to `out`.

    Relative paths are below `base_dir`. DataError for what is wrong with the input, before anything starts where names
    and headers show it; DataWriteError or WorkerError for a failure at run time, after which `resume` goes on.
    """
    prefix = base_dir / request.output
    if _is_finished(prefix, request):
        if WorkFolder(prefix).path.exists():  # of a process that was killed when all had its name
            with WorkFolder(prefix) as folder:
                folder.remove()
        out.write(_FINISHED.format(request.output))
        return
    sources = find_sources(request.input, base_dir=base_dir, file_format=request.format, output=prefix)
    for source in sources:
        if source.format in ("parquet", "arrow"):
            check_column(source, request.text_key)
    tokenizer = _given_tokenizer(request, base_dir)
    with WorkFolder(prefix) as folder:
        run = _Run(request, sources, folder, base_dir=base_dir, err=err)
        try:
            if _is_finished(prefix, request):  # another process was faster
                folder.remove()
                out.write(_FINISHED.format(request.output))
                return
            with writing(prefix, resumable=True):
                run.begin(tokenizer)
            run.go_on()
        except BaseException as error:
            run.fail(error)
            raise
        out.writelines(line + "\n" for line in run.publish())


def _is_finished(prefix: Path, request: Request) -> bool:
    """Whether there is nothing left to do; DataError if something of that name is in the way."""
    found = existing_output(prefix)
    if not found:
        return False
    if request.resume and (idx_path(prefix).exists() or WorkFolder(prefix).path.exists()):
        return idx_path(prefix).exists()
    names = ", ".join(path.name for path in found)
    way_out = "give another name, or remove it"
    if WorkFolder(prefix).path.exists():
        way_out += "; resume=true goes on with a run that was interrupted"
    raise DataError(f"output={request.output}: exists ({names})\n  {way_out}")


def _given_tokenizer(request: Request, base_dir: Path) -> PreTrainedTokenizerBase | None:
    """The one that was named, once it is known to fit the other keys; None where one is to be trained."""
    if request.tokenizer is None:
        encoding.check_trained_eod(request.eod_token)
        return None
    tokenizer = encoding.load(request.tokenizer, base_dir=base_dir)
    if request.append_eod:
        encoding.choose_eod(tokenizer, eod_token=request.eod_token)
    return tokenizer


class _Run:
    """One run in its work folder."""

    def __init__(self, request: Request, sources: list[Source], folder: WorkFolder, *, base_dir: Path, err: TextIO):
        self._request, self._sources, self._folder, self._base_dir, self._err = request, sources, folder, base_dir, err
        self._options = ReadOptions(
            text_key=request.text_key, whole_files=request.document == "file", chunk_size=request.chunk_size
        )
        self._journal = Journal(identity={})
        self._rejections = Rejections(fails=request.on_error == "fail")

    def begin(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        """Take up what an earlier process left, or remove it; train the tokenizer where none is given."""
        request, folder = self._request, self._folder
        identity = self._identity(tokenizer)
        found = folder.read_journal() if request.resume else None
        if found is not None:
            self._check_same(found.identity, identity)
            self._journal = found
            done = f"{found.tally.documents} documents are done"
            self._say(f"going on with {request.output}: {done}")
        else:
            if folder.is_used:
                self._say(f"removing what an earlier, unfinished run left in {folder.path.name}")
            folder.clear()
            self._journal = Journal(identity=identity)
        if self._journal.finished:  # what is left to be done asks for no tokenizer; a trained one may have its name
            self._check_finished()
            return
        if tokenizer is None:
            tokenizer = self._trained_tokenizer()
        self._encoding = Encoding(
            tokenizer=tokenizer,
            name=self._tokenizer_name(),
            eod_token_id=encoding.choose_eod(tokenizer, eod_token=request.eod_token) if request.append_eod else None,
            plain=request.special_tokens == "plain",
            backend=request.backend,
        )
        self._encoding.check_backend()

    def go_on(self) -> None:
        """Tokenise what is left; nothing, where a process died when only names were to be given."""
        if self._journal.finished:
            return
        total = sum(source.num_bytes for source in self._sources)
        before = [0]
        for source in self._sources:
            before.append(before[-1] + source.num_bytes)
        tokeniser = Tokeniser(
            folder=self._folder,
            encoding=self._encoding,
            rejections=self._rejections,
            num_workers=self._num_workers(total),
            resumable=not self._reads_standard_input,
        )
        title = Path(self._request.output).name
        with ProgressReport(self._err, title=title, total_bytes=total or None) as progress:
            workers = f"{tokeniser.num_workers} worker process" + "es" * (tokeniser.num_workers > 1)
            workers += ", ids by tiktoken" if self._encoding.pairs else ""
            progress.line(f"{title}: {workers}" + (f", {total / 1e6:,.1f} MB to read" if total else ""))
            chunks = read_chunks(self._sources, self._options, self._journal.position)
            self._journal = tokeniser.run(
                chunks,
                self._journal,
                text_key=self._request.text_key,
                on_progress=lambda placed, tally: progress.update(before[placed.source] + placed.consumed, tally),
                sidecar=self._sidecar,
            )

    def _check_finished(self) -> None:
        """DataError if what an earlier process called finished is not whole: a disk may lose what it was given."""
        folder = self._folder
        tokens = folder.tokens if folder.tokens.exists() else bin_path(folder.prefix)  # it gets its name first
        try:
            read_index_of(folder.index, tokens)
        except DataError as error:
            raise DataError(f"resume=true: {error}\n  leave resume out to begin anew") from error

    def publish(self) -> list[str]:
        """Give the files their names; the lines that say what was made."""
        self._folder.publish(resumable=True)
        return summary_lines(self._request.output, self._folder.prefix, self._journal, self._rejections.shown)

    def fail(self, error: BaseException) -> None:
        """Keep what can be gone on with, and say so; leave nothing where there is nothing."""
        if self._folder.read_journal() is None:
            self._folder.remove()
        elif isinstance(error, KeyboardInterrupt | WorkerError):
            self._say(f"{self._request.output}: what is done is kept; the same command with resume=true goes on")

    def _tokenizer_name(self) -> str:
        prefix, given = self._folder.prefix, self._request.tokenizer
        if given is None:
            return tokenizer_path(prefix).name
        return stored_name(given, base_dir=self._base_dir, prefix=prefix)

    def _identity(self, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
        """All that the bytes of the output depend on, by the keys that set it."""
        request = self._request
        trained = f"train_tokenizer={request.train_tokenizer}"
        return {
            "input": [source.stamp() for source in self._sources],
            "tokenizer": trained if tokenizer is None else encoding.fingerprint(tokenizer),
            "text_key": request.text_key,
            "document": request.document,
            "append_eod": request.append_eod,
            "eod_token": request.eod_token,
            "special_tokens": request.special_tokens,
            "version of tokenizers": tokenizers.__version__,
        }

    def _check_same(self, then: dict[str, Any], now: dict[str, Any]) -> None:
        for key, value in now.items():
            if then.get(key) == value:
                continue
            way_out = "give what it was, or leave resume out to begin anew"
            if key != "input":
                what = f"{key} is {value}, and was {then.get(key)}"
            else:
                olds = {stamp[0]: stamp for stamp in then.get("input", [])}
                changed = [stamp[0] for stamp in value if olds.get(stamp[0]) != stamp]
                what = f"input: {changed[0]} is new or was changed" if changed else "input: it names other files"
            raise DataError(f"resume=true: the run that was interrupted is another: {what}\n  {way_out}")

    def _trained_tokenizer(self) -> PreTrainedTokenizerBase:
        folder = self._folder
        if not folder.tokenizer.exists():
            size = self._request.train_tokenizer
            assert size is not None, "it is checked to be given where no tokenizer is"
            self._say(f"training a tokenizer of {size} entries")
            with staged_folder(folder.tokenizer) as staging:
                encoding.save(train_tokenizer(self._all_texts(), vocab_size=size), staging)
            folder.write_journal(self._journal)
        return encoding.load(str(folder.tokenizer), base_dir=folder.path)

    def _all_texts(self) -> Iterator[str]:
        for placed in read_chunks(self._sources, self._options, Position()):
            texts, rejected = texts_of(placed.chunk, self._request.text_key)
            self._rejections.check(placed.name, rejected)
            yield from texts

    def _sidecar(self, journal: Journal) -> Sidecar:
        tally = journal.tally
        documents = tally.source_documents + [0] * (len(self._sources) - len(tally.source_documents))
        files = zip(self._sources, documents)
        sources = tuple(SourceFile(path=file.name, num_bytes=file.num_bytes, documents=count) for file, count in files)
        return self._encoding.sidecar(tally, sources)

    def _num_workers(self, total: int) -> int:
        if self._request.workers is not None:
            return self._request.workers
        cores = len(os.sched_getaffinity(0))
        return cores if self._reads_standard_input else min(cores, 1 + total // _BYTES_PER_WORKER)

    @property
    def _reads_standard_input(self) -> bool:
        return any(source.is_standard_input for source in self._sources)

    def _say(self, line: str) -> None:
        self._err.write(line + "\n")
        self._err.flush()
