"""Samples for causal language models from prepared documents: shuffled and laid end to end, every token learnt once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from gooseslo.data.indexed.index_cache import IndexCache
from gooseslo.data.indexed.layout import file_stamp
from gooseslo.data.indexed.names import bin_path, cache_path, idx_path, prefix_of
from gooseslo.data.indexed.readers import open_indexed
from gooseslo.data.order.sample import IGNORED_LABEL, Sample, cut_sample
from gooseslo.data.text.packed import random_words
from gooseslo.errors import DataError

_FORMAT = 1
_DOCUMENTS_A_FILE, _EPOCHS_A_FILE = 1 << 14, 256
"""Small sets are begun again often: one file of the cache holds as many of their epochs as both allow, or one."""


def documents_between(start: float, end: float, total: int) -> range:
    """The documents of a part, given as fractions of all; parts that meet share none and leave none out."""
    return range(round(start * total), round(end * total))


class DatasetForCausalLM:
    """A part of PREFIX.bin / PREFIX.idx, packed without padding.

    Documents round(start_weight * D) to round(end_weight * D) of the file's D, so that parts that meet share none and
    leave none out. Each epoch they are shuffled anew, by seed and epoch, and laid end to end; sample i is the tokens
    i * S to i * S + S of that stream, both included, S being `max_seq_length`. So every token but the stream's first,
    and a tail shorter than S, is predicted once an epoch; a document may go on in the next sample.

    `dataset[i]` is for Hugging Face: `model(**batch)` of some of them, collated, is the loss over all S predictions of
    each. `sample(number)` is for the trainer: of any epoch, numbered through.

    DataError for files that are not whole, a part that is none, or that holds no sample. The order of documents is kept
    beside the data, in PREFIX.cache. `split_type` names the part in messages; nothing else depends on it. With
    `reset_at_document` the documents of a sample do not see each other: positions begin again with each, and the last
    token of one predicts nothing.
    """

    def __init__(
        self,
        data_name: str | Path,
        max_seq_length: int,
        binarization_impl: str = "mmap",
        split_type: str = "train",
        start_weight: float = 0.0,
        end_weight: float = 1.0,
        seed: int = 0,
        reset_at_document: bool = False,
    ):
        if isinstance(max_seq_length, bool) or not isinstance(max_seq_length, int) or max_seq_length < 1:
            raise DataError(f"max_seq_length={max_seq_length}: must be a whole number of at least 1")
        self.reset_at_document = reset_at_document
        self.prefix = prefix_of(Path(data_name))
        self.sequence_length, self.split_type, self.seed = max_seq_length, split_type, seed
        if not 0 <= start_weight < end_weight <= 1:
            raise DataError(
                f"{split_type}: start={start_weight}, end={end_weight} of {self.prefix}: wants 0 <= start < end <= 1"
            )
        # Before they are opened: files that are put in their place later must not be taken for these.
        self._stamp = (
            file_stamp(self.prefix) if idx_path(self.prefix).exists() and bin_path(self.prefix).exists() else []
        )
        self.reader = open_indexed(self.prefix, binarization_impl)
        total = self.reader.num_documents
        self.documents = documents_between(start_weight, end_weight, total)
        bounds = self.reader.doc_idx[[self.documents.start, self.documents.stop]]
        self.num_tokens = int(self.reader.sizes[bounds[0] : bounds[1]].sum(dtype=np.int64))
        self.num_samples = max(0, self.num_tokens - 1) // max_seq_length
        if self.num_samples < 1:
            raise DataError(
                f"{split_type}: {len(self.documents)} of the {total} documents of {self.prefix} (start={start_weight}, "
                f"end={end_weight}) have {self.num_tokens} tokens,\n  less than one sample: {max_seq_length} and one "
                "more to predict; widen the range, or shorten the sequence"
            )
        self._epochs_a_file = max(1, min(_EPOCHS_A_FILE, _DOCUMENTS_A_FILE // (len(self.documents) + 1)))
        self._cache = IndexCache(cache_path(self.prefix))
        self._recent: tuple[tuple[int, np.ndarray], ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_recent": ()}  # mapped arrays would be copied

    def __len__(self) -> int:
        """Samples of an epoch."""
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Sample `index` of the first epoch, as `example` gives it."""
        index = index + len(self) if index < 0 else index
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.example(index)

    def example(self, number: int) -> dict[str, torch.Tensor]:
        """A sample of any epoch: input_ids, labels, shift_labels and, with a reset, position_ids; int64 [S] each.

        Hugging Face shifts `labels` by one itself, and so would never score the last of them; its loss takes
        `shift_labels`, where they are given, as they are.
        """
        input_ids, shifted, positions = self.sample(number)
        own = input_ids.copy()
        if positions is not None:
            own[positions == 0] = IGNORED_LABEL  # the first token of a document is not for the one before it to learn
        labels = {"labels": torch.from_numpy(own), "shift_labels": torch.from_numpy(shifted)}
        places = {} if positions is None else {"position_ids": torch.from_numpy(positions)}
        return {"input_ids": torch.from_numpy(input_ids), **labels, **places}

    def sample(self, number: int) -> Sample:
        """What the model reads and is to predict, of any epoch."""
        tokens, starts = self._stretch(number)
        return cut_sample(tokens, starts if self.reset_at_document else None)

    def tokens(self, number: int) -> np.ndarray:
        """int64 [S + 1]: sample number % num_samples of epoch number // num_samples."""
        return self._stretch(number)[0]

    def _stretch(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of a sample, and where among them documents begin."""
        epoch, index = divmod(number, self.num_samples)
        in_stream, in_file = self._epoch(epoch)
        position, end = index * self.sequence_length, (index + 1) * self.sequence_length + 1
        tokens, begin = np.empty(end - position, dtype=np.int64), position
        document = int(in_stream.searchsorted(position, side="right")) - 1
        starts = []
        while position < end:
            stop = min(int(in_stream[document + 1]), end)
            start = int(in_file[document]) + position - int(in_stream[document])
            tokens[position - begin : stop - begin] = self.reader.tokens(start, stop - position)
            position, document = stop, document + 1
            starts.append(position - begin)
        return tokens, np.array(starts[:-1], dtype=np.int64)

    def _epoch(self, epoch: int) -> np.ndarray:
        """int64 [2, documents + 1]: where each document of the stream begins, in the stream and in the file."""
        block, row = divmod(epoch, self._epochs_a_file)
        for number, arrays in self._recent:
            if number == block:
                return arrays[row]
        facts = [["causal", _FORMAT, self.seed, block, self.documents.start, self.documents.stop]]
        shape = (self._epochs_a_file, 2, len(self.documents) + 1)
        arrays = self._cache.array(
            facts, lambda: self._lay_out(block, shape), stamp=self._stamp, shape=shape, label="documents"
        )
        if (arrays[:, 0, -1] != self.num_tokens).any():  # of other files, after all
            arrays = self._lay_out(block, shape)
        self._recent = ((block, arrays), *self._recent[:1])  # replaced as a whole: several threads may ask
        return arrays[row]

    def _lay_out(self, block: int, shape: tuple[int, ...]) -> np.ndarray:
        starts = self.reader.document_starts()[self.documents.start : self.documents.stop + 1]
        sizes = np.diff(starts)
        arrays = np.zeros(shape, dtype=np.int64)
        for row in range(len(arrays)):
            words = random_words((3, self.seed, block * self._epochs_a_file + row), len(sizes))
            order = np.argsort(words, kind="stable")
            np.cumsum(sizes[order], out=arrays[row, 0, 1:])
            arrays[row, 1, :-1] = starts[order]
        return arrays
