"""Samples of examples: several packed into one, or each alone and padded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gooseslo.data.indexed.index_cache import IndexCache
from gooseslo.data.indexed.readers import IndexedReader
from gooseslo.data.order.sample import IGNORED_LABEL, Sample, restarting_positions
from gooseslo.data.supervised.packing import PACKING_FORMAT, pack


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
        cache: IndexCache | None = None,
        facts: Sequence[object] = (),
    ):
        """Of an example that is longer than a sample the end is kept: its response, and less of its prompt.

        With `label_at_end` the beginning is kept, and the label of its last token stays the last. What shares a sample
        is kept in `cache`, for all processes of a machine, under JSON values that name the examples.
        """
        assert np.array_equal(input_ids.sizes, labels.sizes)
        self.sequence_length = sequence_length
        self._input_ids, self._labels, self._pad_id, self._label_at_end = input_ids, labels, pad_id, label_at_end
        self.num_cut = int((input_ids.sizes > sequence_length).sum())
        """Examples that are longer than a sample."""
        self.num_examples = self.num_samples = len(input_ids)
        self._packed: np.ndarray | None = None
        if packing:
            shape = (2, self.num_examples + 1)
            known = ["packed", PACKING_FORMAT, sequence_length, *facts]
            if cache is None:
                self._packed = self._pack()
            else:  # the folder is of these examples alone: nothing in it is ever out of date
                self._packed = cache.array(known, self._pack, stamp=None, shape=shape, label="packed")
            self.num_samples = int(self._packed[1].searchsorted(self.num_examples))

    def _pack(self) -> np.ndarray:
        """int64 [2, examples + 1]: the examples by pack, and where each pack begins; the rest holds their number."""
        lengths = np.minimum(self._input_ids.sizes, self.sequence_length).astype(np.int64)
        packed = np.full((2, len(lengths) + 1), len(lengths), dtype=np.int64)
        examples, starts = pack(lengths, self.sequence_length)
        packed[0, : len(examples)], packed[1, : len(starts)] = examples, starts
        return packed

    def _examples(self, number: int) -> np.ndarray:
        """The examples of a sample."""
        if self._packed is None:
            return np.array([number])
        begin, end = self._packed[1, number : number + 2].tolist()
        return self._packed[0, begin:end]

    def __len__(self) -> int:
        return self.num_samples

    def sample(self, number: int) -> Sample:
        """Of any epoch; every epoch has the same."""
        examples = self._examples(number % self.num_samples)
        sizes = self._input_ids.sizes[examples].astype(np.int64)
        lengths = np.minimum(sizes, self.sequence_length)
        input_ids = np.full(self.sequence_length, self._pad_id, dtype=np.int64)
        labels = np.full(self.sequence_length, IGNORED_LABEL, dtype=np.int64)
        ends = np.cumsum(lengths)
        for example, size, length, end in zip(*(array.tolist() for array in (examples, sizes, lengths, ends))):
            begin = 0 if self._label_at_end else size - length
            input_ids[end - length : end] = self._input_ids.get(example, begin, length)
            labels[end - length : end] = self._labels.get(example, begin, length)
            if self._label_at_end:
                labels[end - 1] = self._labels[example][-1]
        parts = ends[ends < self.sequence_length]  # the padding is a document of its own
        return Sample(input_ids, labels, restarting_positions(self.sequence_length, parts))
