"""From the `data` group to the data sets of a run: prepared once in the parent, opened by every worker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gooseslo.data.indexed.mixture import Mixture, Part, open_split
from gooseslo.data.supervised.classification import ClassificationTask
from gooseslo.data.supervised.example import Task
from gooseslo.data.supervised.instruction import InstructionTask
from gooseslo.data.supervised.prepare import PreparedExamples, prepare_examples
from gooseslo.data.supervised.record_files import RecordFiles
from gooseslo.data.text.packed import Dataset, SyntheticDataset
from gooseslo.data.text.prepare import PreparedData, prepare
from gooseslo.data.text.stdlib_corpus import StdlibCorpus
from gooseslo.data.text.text_files import TextCorpus
from gooseslo.data.tokenizers.kept_tokenizer import find_tokenizer
from gooseslo.parallel.random import derive_seed
from gooseslo.schema.data_groups import (
    ClassificationDataConfig,
    DataConfig,
    IndexedDataConfig,
    InstructionDataConfig,
    StdlibDataConfig,
    SyntheticDataConfig,
    TextDataConfig,
)


@dataclass(frozen=True, kw_only=True)
class SyntheticData:
    """Random tokens, made as they are read."""

    seed: int
    vocab_size: int
    num_samples: int

    tokenizer_folder: Path | None = None
    eos_token_id: int | None = None

    @property
    def content(self) -> str:
        """What makes the samples."""
        return f"synthetic {self.seed} {self.vocab_size} {self.num_samples}"

    def dataset(self, split: str, sequence_length: int) -> SyntheticDataset:
        """The split's samples; other splits draw from other seeds."""
        return SyntheticDataset(
            seed=derive_seed(self.seed, "synthetic", split),
            vocab_size=self.vocab_size,
            num_samples=self.num_samples,
            sequence_length=sequence_length,
        )


@dataclass(frozen=True, kw_only=True)
class IndexedData:
    """Parts of prepared files by split."""

    splits: dict[str, tuple[Part, ...]]
    reader: str
    seed: int
    """Of the order of documents in training; held-out splits have the same for every run."""
    tokenizer_folder: Path | None
    eos_token_id: int | None
    content: str
    reset_at_document: bool
    """Documents of one sample do not see each other."""

    def dataset(self, split: str, sequence_length: int) -> Dataset:
        """The split's samples, packed anew every epoch; DataError if a part holds none."""
        return open_split(
            self.splits[split],
            sequence_length,
            reader=self.reader,
            seed=self.seed if split == "train" else 0,
            reset_at_document=self.reset_at_document,
        )


@dataclass(frozen=True, kw_only=True)
class RunData:
    """What the workers need to open the data; small and picklable."""

    source: PreparedData | PreparedExamples | IndexedData | SyntheticData
    splits: tuple[str, ...]

    def dataset(self, split: str, sequence_length: int) -> Dataset:
        """The samples of a split; DataError if it holds none."""
        return self.source.dataset(split, sequence_length)

    @property
    def tokenizer_folder(self) -> Path | None:
        """The tokenizer's files; None where there are none."""
        return self.source.tokenizer_folder

    @property
    def identity(self) -> str:
        """Equal for equal samples: a resumed run must have that of its checkpoint."""
        return self.source.content

    @property
    def label_names(self) -> tuple[str, ...]:
        """The classes that are to be told apart, by number; empty where labels are tokens."""
        return self.source.label_names if isinstance(self.source, PreparedExamples) else ()

    @property
    def pad_token_id(self) -> int | None:
        """What fills a sample that is shorter than the others; None where none is."""
        return self.source.pad_id if isinstance(self.source, PreparedExamples) else None

    @property
    def eos_token_id(self) -> int | None:
        """What ends a document."""
        return self.source.eos_token_id


def prepare_data(
    config: DataConfig, *, seed: int, model_vocab_size: int, cache_dir: Path, progress: Callable[[str], None]
) -> RunData:
    """Find or make the run's token files; DataError for text or a tokenizer that cannot be used."""
    if isinstance(config, SyntheticDataConfig):
        vocab_size = config.vocab_size or model_vocab_size
        source = SyntheticData(seed=seed, vocab_size=vocab_size, num_samples=config.samples)
        return RunData(source=source, splits=("train", "valid"))
    base_dir = Path.cwd()
    if isinstance(config, IndexedDataConfig):
        return _find_indexed(config, seed=seed, model_vocab_size=model_vocab_size, cache_dir=cache_dir, say=progress)
    if isinstance(config, InstructionDataConfig | ClassificationDataConfig):
        return _prepare_examples(config, model_vocab_size=model_vocab_size, cache_dir=cache_dir, progress=progress)
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
    prepared = replace(prepared, reset_at_document=config.reset_at_document)
    return RunData(source=prepared, splits=tuple(prepared.splits))


def _prepare_examples(
    config: InstructionDataConfig | ClassificationDataConfig,
    *,
    model_vocab_size: int,
    cache_dir: Path,
    progress: Callable[[str], None],
) -> RunData:
    task, packing = task_of(config)
    prepared = prepare_examples(
        RecordFiles(train=config.train, valid=config.valid, test=config.test, base_dir=Path.cwd()),
        task,
        packing=packing,
        tokenizer=config.tokenizer,
        vocab_size=config.vocab_size,
        model_vocab_size=model_vocab_size,
        cache_dir=cache_dir,
        base_dir=Path.cwd(),
        progress=progress,
    )
    return RunData(source=prepared, splits=prepared.splits)


def task_of(config: InstructionDataConfig | ClassificationDataConfig) -> tuple[Task, bool]:
    """What is learnt from the records, and whether several share a sample."""
    if isinstance(config, InstructionDataConfig):
        return InstructionTask(prompt_key=config.prompt_key, response_key=config.response_key), config.packing
    return ClassificationTask(text_key=config.text_key, label_key=config.label_key), False


def _find_indexed(
    config: IndexedDataConfig, *, seed: int, model_vocab_size: int, cache_dir: Path, say: Callable[[str], None]
) -> RunData:
    mixture = Mixture(train=config.train, valid=config.valid, test=config.test, base_dir=Path.cwd())
    mixture.check_token_ids(model_vocab_size, say=say)
    for overlap in mixture.overlaps():
        logging.getLogger(__name__).warning("warning: %s: its loss is not that of unseen text", overlap)
    sidecar = mixture.sidecar
    tokenizer = find_tokenizer(
        config.tokenizer,
        made_with=None if sidecar is None else (sidecar.tokenizer, sidecar.tokenizer_hash),
        folders=(*mixture.tokenizer_folders, Path.cwd()),
        model_vocab_size=model_vocab_size,
        cache_dir=cache_dir,
    )
    source = IndexedData(
        splits=mixture.splits,
        reader=config.reader,
        seed=seed,
        tokenizer_folder=None if tokenizer is None else tokenizer.folder,
        eos_token_id=sidecar.eod_token_id if sidecar else tokenizer.eos_token_id if tokenizer else None,
        content=mixture.identity(),
        reset_at_document=config.reset_at_document,
    )
    return RunData(source=source, splits=tuple(mixture.splits))
