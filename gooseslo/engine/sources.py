"""From the `data` group to the data sets of a run: prepared once in the parent, opened by every worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gooseslo.data.packed import Dataset, SyntheticDataset
from gooseslo.data.prepare import PreparedData, prepare
from gooseslo.data.stdlib_corpus import StdlibCorpus
from gooseslo.data.text_files import TextCorpus
from gooseslo.parallel.random import derive_seed
from gooseslo.schema.groups import DataConfig, StdlibDataConfig, SyntheticDataConfig, TextDataConfig


@dataclass(frozen=True, kw_only=True)
class SyntheticData:
    """Random tokens, made as they are read."""

    seed: int
    vocab_size: int
    num_samples: int

    def dataset(self, split: str, sequence_length: int) -> SyntheticDataset:
        """The split's samples; other splits draw from other seeds."""
        return SyntheticDataset(
            seed=derive_seed(self.seed, "synthetic", split),
            vocab_size=self.vocab_size,
            num_samples=self.num_samples,
            sequence_length=sequence_length,
        )


@dataclass(frozen=True, kw_only=True)
class RunData:
    """What the workers need to open the data; small and picklable."""

    source: PreparedData | SyntheticData
    splits: tuple[str, ...]

    def dataset(self, split: str, sequence_length: int) -> Dataset:
        """The samples of a split; DataError if it holds none."""
        return self.source.dataset(split, sequence_length)

    @property
    def tokenizer_folder(self) -> Path | None:
        """The tokenizer's files; synthetic data has none."""
        return self.source.tokenizer_folder if isinstance(self.source, PreparedData) else None

    @property
    def identity(self) -> str:
        """Equal for equal samples: a resumed run must have that of its checkpoint."""
        if isinstance(self.source, PreparedData):
            return self.source.content
        return f"synthetic {self.source.seed} {self.source.vocab_size} {self.source.num_samples}"

    @property
    def eos_token_id(self) -> int | None:
        """What ends a document."""
        return self.source.eos_token_id if isinstance(self.source, PreparedData) else None


def prepare_data(
    config: DataConfig, *, seed: int, model_vocab_size: int, cache_dir: Path, progress: Callable[[str], None]
) -> RunData:
    """Find or make the run's token files; DataError for text or a tokenizer that cannot be used."""
    if isinstance(config, SyntheticDataConfig):
        vocab_size = config.vocab_size or model_vocab_size
        source = SyntheticData(seed=seed, vocab_size=vocab_size, num_samples=config.samples)
        return RunData(source=source, splits=("train", "valid"))
    base_dir = Path.cwd()
    corpus: StdlibCorpus | TextCorpus
    if isinstance(config, TextDataConfig):
        corpus = TextCorpus(
            train=config.train, valid=config.valid, test=config.test, text_key=config.text_key, base_dir=base_dir
        )
    else:
        assert isinstance(config, StdlibDataConfig), f"no corpus for {config}"
        corpus = StdlibCorpus()
    prepared = prepare(
        corpus,
        tokenizer=config.tokenizer,
        vocab_size=config.vocab_size,
        model_vocab_size=model_vocab_size,
        cache_dir=cache_dir,
        base_dir=base_dir,
        progress=progress,
    )
    return RunData(source=prepared, splits=tuple(prepared.splits))
