"""Batches of one data-parallel rank. The only state is how many samples the run has consumed.

Shape suffixes: B samples of this rank (global batch size / dp), S sequence length.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import torch

from gooseslo.data.order.ahead import ReadingThreads
from gooseslo.data.order.order import Order, evaluation_order, num_distinct
from gooseslo.data.order.sample import IGNORED_LABEL
from gooseslo.data.text.packed import Dataset

NO_SAMPLE = -1


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One rank's part of a global batch; labels are shifted already: labels[:, j] follows input_ids[:, j]."""

    input_ids: torch.Tensor
    """int64 [B, S]."""
    labels: torch.Tensor
    """int64 [B, S]; -100 where nothing is predicted."""
    position_ids: torch.Tensor | None
    """int64 [B, S], where documents in one sample do not see each other; else None."""
    sample_ids: torch.Tensor
    """int64 [B]: numbers of the samples, which go on over epochs; -1 for a row that only fills the batch."""


class TrainLoader:
    """Global batches by position; data-parallel rank d takes the d-th contiguous part of each.

    Every stage and tp rank of a data-parallel rank builds the same batch from the position, so that labels on the last
    stage are those of the inputs on the first. `workers` threads read that many of the next batches while a step
    computes; what fails in one is raised where its batch is asked for. None is read from position `end` on, where the
    run is over: its first sample may be another epoch's, whose index nobody needs.
    """

    def __init__(
        self,
        dataset: Dataset,
        order: Order,
        *,
        global_batch_size: int,
        micro_batch_size: int,
        dp_rank: int,
        dp_size: int,
        workers: int = 0,
        end: int | None = None,
    ):
        """`end`, in samples, None: the run goes on for ever."""
        assert global_batch_size % (dp_size * micro_batch_size) == 0
        self.global_batch_size = global_batch_size
        self._dataset = dataset
        self._order = order
        self._num_rows = global_batch_size // dp_size
        self._first_row = dp_rank * self._num_rows
        self._workers, self._end = workers, end
        self._threads: ReadingThreads | None = None
        self._ahead: dict[int, Future[Batch]] = {}

    def batch(self, consumed_samples: int) -> Batch:
        """This rank's part of the global batch that follows the first `consumed_samples` of the run."""
        if not self._workers:
            return self._read(consumed_samples)
        if self._threads is None:
            self._threads = ReadingThreads(self._workers)
        following = [consumed_samples + (index + 1) * self.global_batch_size for index in range(self._workers)]
        wanted = [consumed_samples, *(at for at in following if self._end is None or at < self._end)]
        for position in [position for position in self._ahead if position not in wanted]:
            self._ahead.pop(position).cancel()
        for position in wanted:
            if position not in self._ahead:
                self._ahead[position] = self._threads.submit(functools.partial(self._read, position))
        return self._ahead.pop(consumed_samples).result()

    def close(self) -> None:
        """End the threads; batches that nobody asked for are given up, and so is a read that hangs."""
        for future in self._ahead.values():
            future.cancel()
        if self._threads is not None:
            self._threads.close()
        self._threads, self._ahead = None, {}

    def _read(self, consumed_samples: int) -> Batch:
        return _read_batch(self._dataset, self._order.samples(consumed_samples + self._first_row, self._num_rows))


class EvalLoader:
    """The first `eval_batches` global batches of a split in its own order, or all of it; the same at every evaluation.

    No sample comes twice: a blend by weight ends where a set of its would begin again.
    Every batch has as many rows on every rank (a pipeline's shapes are fixed): the last one is filled with rows
    without labels.
    """

    def __init__(self, dataset: Dataset, *, eval_batches: int, global_batch_size: int, dp_rank: int, dp_size: int):
        assert global_batch_size % dp_size == 0
        self.num_samples = num_distinct(dataset, at_most=eval_batches * global_batch_size)
        self.num_batches = -(-self.num_samples // global_batch_size)
        self._dataset = dataset
        self._order = evaluation_order(dataset)
        self._global_batch_size = global_batch_size
        self._num_rows = global_batch_size // dp_size
        self._first_row = dp_rank * self._num_rows

    def __iter__(self) -> Iterator[Batch]:
        for index in range(self.num_batches):
            start = index * self._global_batch_size + self._first_row
            positions = np.arange(start, start + self._num_rows)
            ids = self._order.samples(start, self._num_rows)
            yield _read_batch(self._dataset, np.where(positions < self.num_samples, ids, NO_SAMPLE))


def _read_batch(dataset: Dataset, ids: np.ndarray) -> Batch:
    shape = (len(ids), dataset.sequence_length)
    input_ids_BS, labels_BS = np.zeros(shape, dtype=np.int64), np.full(shape, IGNORED_LABEL)
    positions_BS = None
    for row, number in enumerate(ids.tolist()):
        if number == NO_SAMPLE:
            continue
        sample = dataset.sample(number)
        input_ids_BS[row], labels_BS[row] = sample.input_ids, sample.labels
        if sample.position_ids is not None:
            if positions_BS is None:
                positions_BS = np.tile(np.arange(shape[1]), (len(ids), 1))
            positions_BS[row] = sample.position_ids
    return Batch(
        input_ids=torch.from_numpy(input_ids_BS),
        labels=torch.from_numpy(labels_BS),
        position_ids=None if positions_BS is None else torch.from_numpy(positions_BS),
        sample_ids=torch.from_numpy(ids.copy()),
    )
