"""How long the indices of large data sets take: built, opened, read from, blended, packed. Prints seconds of a core.

    python benchmarks/data_index.py [folder]

The tokens lie in a sparse file: a page that was never written is zeros, which the system makes up without a disk. So
the time of a sample is that of our own work and of mapping pages, not of any disk's. Waiting for other programs on the
machine is not counted.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from gooseslo.data.indexed.causal_lm import DatasetForCausalLM
from gooseslo.data.indexed.layout import write_index
from gooseslo.data.indexed.names import bin_path, idx_path
from gooseslo.data.order.blend import DatasetBlender
from gooseslo.data.supervised.packing import pack

DOCUMENTS, TOKENS, LENGTH = 1_000_000, 1_000_000_000, 1024
SETS, SAMPLES = 100, 10_000_000
EXAMPLES, PACKED_LENGTH = 1_000_000, 4096
FETCHED = 20_000
Result = TypeVar("Result")


class Numbers:
    """A data set of which only the size matters."""

    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return self.size


def write_sparse(prefix: Path) -> None:
    """A million documents of a thousand tokens on average, from 1 to some ten thousand."""
    cuts = np.sort(np.random.default_rng(0).choice(TOKENS - 1, DOCUMENTS - 1, replace=False) + 1)
    sizes = np.diff(cuts, prepend=0, append=TOKENS)
    write_index(idx_path(prefix), dtype=np.dtype("<u2"), sizes=sizes)
    with bin_path(prefix).open("wb") as file:
        file.truncate(2 * TOKENS)


def timed(what: str, limit: float, work: Callable[[], Result], *, times: int = 1) -> Result:
    """Do the work and print its seconds, over `times`, beside the limit that we set ourselves."""
    began = time.process_time()
    result = work()
    seconds = (time.process_time() - began) / times
    print(f"{what:<58} {seconds:12.6f} s   {seconds / limit:6.2f} of {limit:g} s")  # noqa: T201
    return result


def measure(prefix: Path) -> None:
    """The four figures, in one process."""
    write_sparse(prefix)

    def opened() -> DatasetForCausalLM:
        dataset = DatasetForCausalLM(prefix, LENGTH)
        dataset.tokens(0)
        return dataset

    timed(f"index built: {DOCUMENTS:,} documents, {TOKENS:,} tokens", 10, opened)
    dataset = timed("opened from the cache, first sample", 0.2, opened)
    numbers = np.random.default_rng(1).integers(0, len(dataset), FETCHED).tolist()

    def fetch(dataset: DatasetForCausalLM) -> None:
        for number in numbers:
            dataset.tokens(number)

    for reader in ("mmap", "lazy"):
        dataset = DatasetForCausalLM(prefix, LENGTH, reader)
        dataset.tokens(0)
        timed(f"a random sample of {LENGTH}, {reader}", 30e-6, lambda: fetch(dataset), times=FETCHED)  # noqa: B023
    for seed in range(3):
        shares = np.random.default_rng(seed).random(SETS)
        sizes = np.ceil(shares / shares.sum() * SAMPLES).astype(int).tolist()

        def blend(sizes: list[int] = sizes) -> None:
            DatasetBlender([Numbers(size) for size in sizes]).turns.locate(0, SAMPLES)

        timed(f"blend of {SETS} sets, {SAMPLES:,} samples, sizes {seed}", 5, blend)
    lengths = np.minimum(np.random.default_rng(2).lognormal(5.5, 1.0, EXAMPLES).astype(np.int64) + 1, PACKED_LENGTH)
    timed(f"{EXAMPLES:,} examples packed into samples of {PACKED_LENGTH}", 5, lambda: pack(lengths, PACKED_LENGTH))
    tracemalloc.start()
    pack(lengths, PACKED_LENGTH)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"{'  memory for that, at its peak':<58} {peak / 1e6:12.1f} MB  {peak / 300e6:6.2f} of 300 MB")  # noqa: T201


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="data-index-", dir=sys.argv[1] if len(sys.argv) > 1 else None))
    try:
        measure(folder / "large")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
