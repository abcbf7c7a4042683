"""Samples of prompts and responses: several examples packed into a sample, or one padded to its length."""

from __future__ import annotations

import numpy as np

from gooseslo.data.indexed.readers import IndexedReader
from gooseslo.data.sample import IGNORED_LABEL, Sample, restarting_positions
from gooseslo.data.supervised.packing import pack


class InstructionDataset:
    """Over token ids and, beside them, what of each is to be learnt (1) or not (0); an example is a sequence of both.

    An example of n tokens takes n - 1 places: its last token is only predicted. What is longer than a sample is cut at
    its end. Packed examples do not see each other. Places that stay empty hold `pad_id` and predict nothing; what is to
    be learnt comes from the examples alone, so a padding token that is also the end of a response is still learnt.
    """

    def __init__(
        self, ids: IndexedReader, learnt: IndexedReader, *, sequence_length: int, pad_id: int, packing: bool = True
    ):
        assert np.array_equal(ids.sizes, learnt.sizes)
        self.sequence_length = sequence_length
        self._ids, self._learnt, self._pad_id = ids, learnt, pad_id
        self._lengths = np.minimum(np.asarray(ids.sizes, dtype=np.int64) - 1, sequence_length)
        self._examples = np.flatnonzero(self._lengths > 0)
        self._starts = np.arange(len(self._examples) + 1)
        if packing:
            order, self._starts = pack(self._lengths[self._examples], sequence_length)
            self._examples = self._examples[order]

    @property
    def num_samples(self) -> int:
        return len(self._starts) - 1

    @property
    def num_cut(self) -> int:
        """Examples that are longer than a sample."""
        return int((np.asarray(self._ids.sizes) - 1 > self.sequence_length).sum())

    def __getitem__(self, number: int) -> Sample:
        """The sample of this number; numbers go on over epochs."""
        number %= self.num_samples
        examples = self._examples[self._starts[number] : self._starts[number + 1]]
        input_ids = np.full(self.sequence_length, self._pad_id, dtype=np.int64)
        labels = np.full(self.sequence_length, IGNORED_LABEL, dtype=np.int64)
        ends = np.cumsum(self._lengths[examples])
        for example, end in zip(examples.tolist(), ends.tolist()):
            length = int(self._lengths[example])
            ids = self._ids.get(example, 0, length + 1).astype(np.int64)
            place = slice(end - length, end)
            input_ids[place] = ids[:-1]
            labels[place] = np.where(self._learnt.get(example, 1, length), ids[1:], IGNORED_LABEL)
        parts = ends[ends < self.sequence_length]  # the padding is a document of its own
        return Sample(input_ids, labels, restarting_positions(self.sequence_length, parts))
