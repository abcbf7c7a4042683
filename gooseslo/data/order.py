"""Which sample comes when: a function of the seed and the position alone, so that any layout and any restart agree."""

from __future__ import annotations

import numpy as np

from gooseslo.data.packed import random_words


class SampleOrder:
    """A new permutation of all samples every epoch, drawn from (seed, epoch); positions go on for ever."""

    def __init__(self, *, num_samples: int, seed: int):
        assert num_samples > 0
        self.num_samples = num_samples
        self._seed = seed
        self._epoch = -1
        self._permutation = np.empty(0, dtype=np.int64)

    def samples(self, start: int, count: int) -> np.ndarray:
        """int64 [count]: the samples at positions start ... start + count - 1; may span epochs."""
        parts = []
        position = start
        while position < start + count:
            epoch, offset = divmod(position, self.num_samples)
            taken = min(self.num_samples - offset, start + count - position)
            parts.append(self._epoch_permutation(epoch)[offset : offset + taken])
            position += taken
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _epoch_permutation(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:
            words = random_words((0, self._seed, epoch), self.num_samples)
            self._permutation = np.argsort(words, kind="stable")
            self._epoch = epoch
        return self._permutation
