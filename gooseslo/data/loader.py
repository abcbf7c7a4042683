"""Batches of one data-parallel rank. The only state is how many samples the run has consumed.

Shape suffixes: B samples of this rank (global batch size / dp), S sequence length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from gooseslo.data.order import SampleOrder
from gooseslo.data.packed import Dataset

IGNORED_LABEL = -100
NO_SAMPLE = -1


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One rank's part of a global batch; labels are shifted already: labels[:, j] follows input_ids[:, j]."""

    input_ids: torch.Tensor
    """int64 [B, S]."""
    labels: torch.Tensor
    """int64 [B, S]; -100 where nothing is predicted."""
    sample_ids: torch.Tensor
    """int64 [B]: numbers of the samples in their split; -1 for a row that only fills the batch."""


class TrainLoader:
    """Global batches by position; data-parallel rank d takes the d-th contiguous part of each.

    Every stage and tp rank of a data-parallel rank builds the same batch from the position, so that labels on the last
    stage are those of the inputs on the first.
    """

    def __init__(
        self,
        dataset: Dataset,
        order: SampleOrder,
        *,
        global_batch_size: int,
        micro_batch_size: int,
        dp_rank: int,
        dp_size: int,
    ):
        assert global_batch_size % (dp_size * micro_batch_size) == 0
        self.global_batch_size = global_batch_size
        self._dataset = dataset
        self._order = order
        self._num_rows = global_batch_size // dp_size
        self._first_row = dp_rank * self._num_rows

    def batch(self, consumed_samples: int) -> Batch:
        """This rank's part of the global batch that follows the first `consumed_samples` of the run."""
        return _read_batch(self._dataset, self._order.samples(consumed_samples + self._first_row, self._num_rows))


class EvalLoader:
    """The first `eval_batches` global batches of a split in file order, or all of it; the same at every evaluation.

    Every batch has as many rows on every rank (a pipeline's shapes are fixed): the last one is filled with rows
    without labels.
    """

    def __init__(self, dataset: Dataset, *, eval_batches: int, global_batch_size: int, dp_rank: int, dp_size: int):
        assert global_batch_size % dp_size == 0
        self.num_samples = min(eval_batches * global_batch_size, dataset.num_samples)
        self.num_batches = -(-self.num_samples // global_batch_size)
        self._dataset = dataset
        self._global_batch_size = global_batch_size
        self._num_rows = global_batch_size // dp_size
        self._first_row = dp_rank * self._num_rows

    def __iter__(self) -> Iterator[Batch]:
        for index in range(self.num_batches):
            start = index * self._global_batch_size + self._first_row
            ids = np.arange(start, start + self._num_rows)
            yield _read_batch(self._dataset, np.where(ids < self.num_samples, ids, NO_SAMPLE))


def _read_batch(dataset: Dataset, ids: np.ndarray) -> Batch:
    tokens_BS1 = torch.zeros(len(ids), dataset.sequence_length + 1, dtype=torch.int64)
    labels_BS = torch.full((len(ids), dataset.sequence_length), IGNORED_LABEL)
    for row, index in enumerate(ids):
        if index != NO_SAMPLE:
            tokens_BS1[row] = dataset[int(index)]
            labels_BS[row] = tokens_BS1[row, 1:]
    return Batch(input_ids=tokens_BS1[:, :-1].contiguous(), labels=labels_BS, sample_ids=torch.from_numpy(ids.copy()))
