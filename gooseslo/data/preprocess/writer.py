"""Token ids and lengths to growing files, document by document, such that a killed run can go on."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np

from gooseslo.data.indexed.layout import write_index
from gooseslo.data.indexed.sidecar import Sidecar
from gooseslo.data.preprocess.chunks import Placed
from gooseslo.data.preprocess.folder import Tally, WorkFolder
from gooseslo.data.preprocess.work import Encoded, Rejected
from gooseslo.errors import DataError
from gooseslo.staging import flush

_LARGEST_LENGTH = 2**31 - 1
_BLOCK_BYTES = 1 << 20


class GrowingFile:
    """Bytes are appended; each write is whole or an OSError."""

    def __init__(self, path: Path, *, size: int):
        """What lies behind `size` was not in the journal, and is cut off."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            found = os.fstat(self._descriptor).st_size
            if found < size:
                raise DataError(f"{path}: shorter than its journal says ({found} of {size} bytes)\n  start again")
            self.cut(size)
        except BaseException:
            self.close()
            raise

    def append(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        self.size += len(data)

    def cut(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        os.lseek(self._descriptor, size, os.SEEK_SET)
        self.size = size

    def flush(self) -> None:
        """Wait until all is on the disk."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class HashedFile(GrowingFile):
    """Knows the SHA-256 of its bytes; what it is opened with is read once, and so is what stays of it after a cut."""

    def __init__(self, path: Path, *, size: int):
        self._hash = hashlib.sha256()
        self._marked = (0, hashlib.sha256())
        super().__init__(path, size=size)

    def append(self, data: bytes) -> None:
        super().append(data)
        self._hash.update(data)

    def mark(self) -> None:
        """Remember this place: a cut to it is free."""
        self._marked = (self.size, self._hash.copy())

    def cut(self, size: int) -> None:
        super().cut(size)
        marked, known = self._marked
        if marked == size:
            self._hash = known.copy()
            return
        self._hash = hashlib.sha256()
        for begin in range(0, size, _BLOCK_BYTES):
            self._hash.update(os.pread(self._descriptor, min(_BLOCK_BYTES, size - begin), begin))

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


class TokenWriter:
    """A context manager. Chunks come in the order of the input; their tokens are of `dtype`."""

    def __init__(
        self, folder: WorkFolder, *, dtype: str, eod_token_id: int | None, tally: Tally, sizes: dict[str, int]
    ):
        """`tally` and `sizes`: those of the journal that is gone on from."""
        self.tally = tally
        self._folder = folder
        self._dtype = np.dtype(dtype)
        self._eod = b"" if eod_token_id is None else np.array([eod_token_id], dtype).tobytes()
        self._eod_token_id = eod_token_id
        self._tokens = HashedFile(folder.tokens, size=sizes.get("tokens", 0))
        paths = {"lengths": folder.lengths, "rejected": folder.rejected}
        rest = {name: GrowingFile(path, size=sizes.get(name, 0)) for name, path in paths.items()}
        self._files = {"tokens": self._tokens, **rest}
        self._document_start: int | None = None
        """Bytes before the document whose pieces are coming."""
        self._drops_document = False

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()

    @property
    def is_between_documents(self) -> bool:
        """Whether a journal may be written: of a document in pieces the position is known at its end only."""
        return self._document_start is None

    @property
    def sizes(self) -> dict[str, int]:
        return {name: file.size for name, file in self._files.items()}

    def flush(self) -> None:
        """Wait until all is on the disk."""
        for file in self._files.values():
            file.flush()

    def add(self, placed: Placed, encoded: Encoded) -> list[Rejected]:
        """Append the documents of one chunk; returns the records that it left out."""
        self.tally.text_bytes += encoded.num_text_bytes
        if placed.chunk.kind == "piece":
            return self._add_piece(placed, encoded)
        self._keep(placed.name, encoded.rejected)
        self._tokens.append(encoded.tokens)
        self._files["lengths"].append(self._checked(placed, np.asarray(encoded.lengths)))
        self.tally.empty += encoded.num_empty
        self._count_documents(placed.source, len(encoded.lengths))
        self._count_tokens(self._facts(encoded.tokens))
        return encoded.rejected

    def _add_piece(self, placed: Placed, encoded: Encoded) -> list[Rejected]:
        """One bad line leaves the whole document out: it is one rejected record, however many follow."""
        tokens = self._tokens
        if self._document_start is None:
            tokens.mark()
            self._document_start, self._drops_document, self._piece_facts = tokens.size, False, []
        rejected: list[Rejected] = []
        if encoded.rejected and not self._drops_document:
            self._drops_document = True
            tokens.cut(self._document_start)
            first = encoded.rejected[0]
            rejected = [replace(first, rule=f"{first.rule}; the whole file, a document, is left out")]
            self._keep(placed.name, rejected)
        if not self._drops_document:
            tokens.append(encoded.tokens)
            self._piece_facts.append(self._facts(encoded.tokens))
        if placed.chunk.ends_document:
            self._end_document(placed)
        return rejected

    def _end_document(self, placed: Placed) -> None:
        assert self._document_start is not None
        tokens = self._tokens
        if tokens.size > self._document_start:
            tokens.append(self._eod)
            length = (tokens.size - self._document_start) // self._dtype.itemsize
            self._files["lengths"].append(self._checked(placed, np.array([length])))
            for facts in [*self._piece_facts, self._facts(self._eod)]:
                self._count_tokens(facts)
            self._count_documents(placed.source, 1)
        elif not self._drops_document:
            self.tally.empty += 1
        self._document_start = None

    def _checked(self, placed: Placed, lengths: np.ndarray) -> bytes:
        """Lengths as the index holds them; DataError for one that it cannot hold."""
        if (longest := int(lengths.max(initial=0))) > _LARGEST_LENGTH:
            place = "" if placed.chunk.kind == "piece" else f", {placed.chunk.lines}"
            raise DataError(
                f"input: {placed.name}{place}: a document of {longest:,} tokens; the index holds lengths up to "
                f"{_LARGEST_LENGTH:,}\n  divide it into several documents"
            )
        return lengths.astype("<i4").tobytes()

    def _count_documents(self, source: int, documents: int) -> None:
        tally = self.tally
        tally.documents += documents
        tally.source_documents += [0] * (source + 1 - len(tally.source_documents))
        tally.source_documents[source] += documents
        tally.inner_eods -= documents if self._eod else 0

    def _facts(self, tokens: bytes) -> tuple[int, int, int]:
        """Number of ids, the largest of them, and how many of them end a document."""
        ids = np.frombuffer(tokens, self._dtype)
        num_eods = 0 if self._eod_token_id is None else int(np.count_nonzero(ids == self._eod_token_id))
        return len(ids), int(ids.max()) if len(ids) else -1, num_eods

    def _count_tokens(self, facts: tuple[int, int, int]) -> None:
        num_ids, largest, num_eods = facts
        self.tally.tokens += num_ids
        self.tally.largest_id = max(self.tally.largest_id, largest)
        self.tally.inner_eods += num_eods

    def _keep(self, name: str, rejected: list[Rejected]) -> None:
        self.tally.rejected += len(rejected)
        for each in rejected:
            record = {"file": name, "line": each.line, "reason": each.rule, "record": each.raw}
            self._files["rejected"].append((json.dumps(record) + "\n").encode())

    def finish(self, sidecar: Sidecar) -> None:
        """Write what is known at the end only, the index and the facts, and wait until all is on the disk."""
        folder = self._folder
        lengths = np.memmap(folder.lengths, dtype="<i4", mode="r")
        write_index(folder.index, dtype=self._dtype, sizes=lengths)
        facts = replace(sidecar, tokens_sha256=self._tokens.sha256)
        folder.sidecar.write_text(facts.to_json(), encoding="utf-8")
        if self.tally.rejected == 0:
            folder.rejected.unlink()
        self.flush()
        for path in (folder.index, folder.sidecar, folder.path):
            flush(path)
