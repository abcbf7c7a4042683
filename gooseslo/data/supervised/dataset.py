"""Samples of examples: several packed into one, or each alone and padded."""

from __future__ import annotations

import numpy as np

from gooseslo.data.indexed.readers import IndexedReader
from gooseslo.data.order.sample import IGNORED_LABEL, Sample, restarting_positions
from gooseslo.data.supervised.packing import pack


class ExampleDataset:
    """Over the tokens of examples and, beside them, their labels: the same lengths in both.

    Packed examples do not see each other. Places that stay empty hold `pad_id` and predict nothing; labels come from
    the examples alone, so a padding token that is also the end of a response is still learnt.
    """

    def __init__(
        self,
        input_ids: IndexedReader,
        labels: IndexedReader,
        *,
        sequence_length: int,
        pad_id: int,
        packing: bool,
        label_at_end: bool = False,
    ):
        """Of an example that is longer than a sample the end is kept: its response, and less of its prompt.

        With `label_at_end` the beginning is kept, and the label of its last token stays the last.
        """
        assert np.array_equal(input_ids.sizes, labels.sizes)
        self.sequence_length = sequence_length
        self._input_ids, self._labels, self._pad_id, self._label_at_end = input_ids, labels, pad_id, label_at_end
        sizes = np.asarray(input_ids.sizes, dtype=np.int64)
        self.num_cut = int((sizes > sequence_length).sum())
        """Examples that are longer than a sample."""
        self.num_examples = len(sizes)
        self._lengths = np.minimum(sizes, sequence_length)
        if packing:
            self._examples, self._starts = pack(self._lengths, sequence_length)
        else:
            self._examples, self._starts = np.arange(len(sizes)), np.arange(len(sizes) + 1)

    @property
    def num_samples(self) -> int:
        return len(self._starts) - 1

    def __len__(self) -> int:
        return self.num_samples

    def sample(self, number: int) -> Sample:
        """Of any epoch; every epoch has the same."""
        number %= self.num_samples
        examples = self._examples[self._starts[number] : self._starts[number + 1]]
        input_ids = np.full(self.sequence_length, self._pad_id, dtype=np.int64)
        labels = np.full(self.sequence_length, IGNORED_LABEL, dtype=np.int64)
        ends = np.cumsum(self._lengths[examples])
        for example, end in zip(examples.tolist(), ends.tolist()):
            length = int(self._lengths[example])
            begin = 0 if self._label_at_end else int(self._input_ids.sizes[example]) - length
            input_ids[end - length : end] = self._input_ids.get(example, begin, length)
            labels[end - length : end] = self._labels.get(example, begin, length)
            if self._label_at_end:
                labels[end - 1] = self._labels[example][-1]
        parts = ends[ends < self.sequence_length]  # the padding is a document of its own
        return Sample(input_ids, labels, restarting_positions(self.sequence_length, parts))
