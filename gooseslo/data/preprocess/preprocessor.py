"""Preprocessing from Python: any iterable of texts to the same files that the command line writes."""

from __future__ import annotations

import io
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from gooseslo.data.indexed.names import stored_name
from gooseslo.data.indexed.readers import READERS
from gooseslo.data.preprocess.chunks import Placed, Position
from gooseslo.data.preprocess.encoding import Encoding
from gooseslo.data.preprocess.folder import Journal, WorkFolder, check_free
from gooseslo.data.preprocess.progress import ProgressReport
from gooseslo.data.preprocess.summary import summary_lines
from gooseslo.data.preprocess.tokenise import Rejections, Tokeniser
from gooseslo.data.preprocess.work import Chunk
from gooseslo.data.text.records import BadRecordError, decode, read_lines, record_text
from gooseslo.errors import DataError

_CHUNK_CHARACTERS = 1 << 20


class DatasetPreprocessor:
    """Tokenises documents on all cores and writes `NAME.bin`, `NAME.idx` and `NAME.json`.

    A text is a document. `append_eod` ends each with `eod_token_id` (None: the tokenizer's eos token); one that gives
    no token is left out. `binarization_impl` is how the files will be read (mmap, lazy or cached): they are the same.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        chunk_size: int = 1024,
        binarization_impl: str = "mmap",
        append_eod: bool = True,
        eod_token_id: int | None = None,
        *,
        workers: int | None = None,
    ):
        """`workers`: processes; None: one a core. DataError if documents are to end with a token that there is not."""
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            rule = f"tokenizer: a tokenizer of transformers is wanted, not {type(tokenizer).__name__}"
            raise DataError(f"{rule}\n  load it: AutoTokenizer.from_pretrained(NAME_OR_FOLDER)")
        if binarization_impl not in READERS:
            raise DataError(f"binarization_impl={binarization_impl}: no such reader\n  readers: {', '.join(READERS)}")
        if chunk_size < 1:
            raise DataError(f"chunk_size={chunk_size}: must be at least 1")
        eod = tokenizer.eos_token_id if eod_token_id is None else eod_token_id
        if workers is not None and workers < 1:
            raise DataError(f"workers={workers}: must be at least 1; None is one a core")
        if append_eod and eod is None:
            raise DataError(
                "append_eod=True: the tokenizer has no eos token to end documents with\n"
                "  give eod_token_id=ID, or append_eod=False"
            )
        if append_eod and not 0 <= eod < max(len(tokenizer), max(tokenizer.get_vocab().values()) + 1):
            raise DataError(f"eod_token_id={eod}: not an id of the tokenizer, which has {len(tokenizer)} entries")
        self._encoding = Encoding(
            tokenizer=tokenizer, name=tokenizer.name_or_path or "", eod_token_id=eod if append_eod else None
        )
        self._chunk_size = chunk_size
        self._workers = workers or len(os.sched_getaffinity(0))

    def preprocess(
        self, texts: Iterable[str], save_file_name: str | os.PathLike[str], log_interval: int = 1000
    ) -> None:
        """Write the files of `save_file_name`; a line about the speed every `log_interval` documents.

        Each text is taken as it is. Of an open text file each line is one, without its line end; blank lines are none:
        the same documents as `gooseslo preprocess input=FILE.txt`. DataError for what is no text, or if the files are
        there already; nothing is left under their names unless they are whole.
        """
        prefix = Path(save_file_name)
        check_free(prefix, output=str(prefix))
        rejections = Rejections(fails=True, way_out="")
        name = stored_name(self._encoding.name, base_dir=Path.cwd(), prefix=prefix)
        encoding = replace(self._encoding, name=name)
        with WorkFolder(prefix) as folder:
            try:
                check_free(prefix, output=str(prefix))  # another process may have been faster
                folder.clear()
                tokeniser = Tokeniser(
                    folder=folder,
                    encoding=encoding,
                    rejections=rejections,
                    num_workers=self._workers,
                    resumable=False,
                )
                with ProgressReport(
                    sys.stderr, title=prefix.name, total_bytes=None, documents_per_line=log_interval
                ) as progress:
                    journal = tokeniser.run(
                        self._chunks(texts),
                        Journal(identity={}),
                        text_key="text",
                        on_progress=lambda placed, tally: progress.update(0, tally),
                        sidecar=lambda journal: encoding.sidecar(journal.tally),
                    )
            except BaseException:
                folder.remove()
                raise
            folder.publish()
        for line in summary_lines(str(prefix), prefix, journal, rejections.shown):
            sys.stderr.write(line + "\n")

    def open_jsonl(self, name: str | os.PathLike[str], json_key: str = "text") -> Iterator[str]:
        """The texts under `json_key` (nested by dots) of a file, whose `.jsonl` may be left out.

        DataError if there is no such file, or for the first line without such a text.
        """
        given = Path(name)
        path = given if given.name.endswith(".jsonl") else given.parent / f"{given.name}.jsonl"
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        return _records(path, json_key)

    def _chunks(self, texts: Iterable[str]) -> Iterator[Placed]:
        documents = _documents(texts)
        first = 1
        while batch := list(_batch(documents, self._chunk_size)):
            chunk = Chunk(kind="values", content=batch, first_line=first, num_lines=len(batch))
            first += len(batch)
            yield Placed(chunk, source=0, name="texts", end=Position(), consumed=0)


def _documents(texts: Iterable[str]) -> Iterator[str]:
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        what = "one text" if isinstance(texts, str) else type(texts).__name__
        raise DataError(f"preprocess wants an iterable of texts, not {what}: open(FILE), or a list")
    if not isinstance(texts, io.TextIOBase):
        yield from texts
        return
    for line in texts:
        if not line.isspace():
            yield line.removesuffix("\n").removesuffix("\r")


def _batch(documents: Iterator[str], size: int) -> Iterator[str]:
    """The next documents: at most `size`, and of about so many characters."""
    characters = 0
    for document in itertools.islice(documents, size):
        yield document
        characters += len(document) if isinstance(document, str) else 0
        if characters >= _CHUNK_CHARACTERS:
            return


def _records(path: Path, json_key: str) -> Iterator[str]:
    for number, line in read_lines(path):
        try:
            text = decode(line)
            if text.strip():
                yield record_text(text, json_key, option="json_key")
        except BadRecordError as bad:
            way_out = f"\n  {bad.way_out}" if bad.way_out else ""
            raise DataError(f"{path}, line {number}: {bad.rule}{way_out}") from None
