"""What a run can learn from: the options of the `data` group, as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    name: str = "stdlib"
    """stdlib, text, indexed, instruction, classification or synthetic; the same as data=NAME."""
    workers: int = 1
    """Threads of a rank that read the next batches while a step computes; 0: each step reads its own."""


@dataclass(frozen=True, kw_only=True)
class StdlibDataConfig(DataConfig):
    """The source text of the running interpreter's standard library."""

    name: str = "stdlib"
    tokenizer: str | None = None
    """Name or folder of a tokenizer; null: a byte-level BPE trained on the train split."""
    vocab_size: int | None = None
    """Size of the built-in tokenizer; null: min(8192, the model's table)."""
    reset_at_document: bool = False
    """Documents that share a sample do not see each other: positions begin again, and so does attention."""


@dataclass(frozen=True, kw_only=True)
class TextDataConfig(DataConfig):
    """Text files: .txt (a file is a document) and .jsonl (a line is a document)."""

    name: str = "text"
    tokenizer: str | None = None
    """Name or folder of a tokenizer; null: a byte-level BPE trained on the train files."""
    vocab_size: int | None = None
    """Size of the built-in tokenizer; null: min(8192, the model's table)."""
    text_key: str = "text"
    """Key of the text in a .jsonl record."""
    train: Any = None
    """A path, or a list of paths or of {path, start, end}."""
    valid: Any = None
    """Like train; evaluated during training."""
    test: Any = None
    """Like train; never trained on."""
    reset_at_document: bool = False
    """Documents that share a sample do not see each other: positions begin again, and so does attention."""


@dataclass(frozen=True, kw_only=True)
class IndexedDataConfig(DataConfig):
    """Tokenised files, PREFIX.bin and PREFIX.idx: of `gooseslo preprocess`, Megatron-LM, GPT-NeoX or OSLO."""

    name: str = "indexed"
    train: Any = None
    """A PREFIX, or a list of them or of {path, weight, start, end}: weights for all or none (by size)."""
    valid: Any = None
    """Like train; evaluated during training."""
    test: Any = None
    """Like train; never trained on."""
    tokenizer: str | None = None
    """Name or folder of the tokenizer that made the tokens; null: the one that PREFIX.json names, if it is here."""
    reader: str = "mmap"
    """mmap, lazy (reads what is asked for) or cached (all of it in memory)."""
    reset_at_document: bool = False
    """Documents that share a sample do not see each other: positions begin again, and so does attention."""


@dataclass(frozen=True, kw_only=True)
class InstructionDataConfig(DataConfig):
    """Prompts and responses, or chats, in .jsonl files: only what the assistant says is learnt."""

    name: str = "instruction"
    train: Any = None
    """A path, or a list of paths or of {path, start, end}. A record has a prompt and a response, or `messages`."""
    valid: Any = None
    """Like train; evaluated during training."""
    test: Any = None
    """Like train; never trained on."""
    prompt_key: str = "prompt"
    """Key of the prompt in a record."""
    response_key: str = "response"
    """Key of the response in a record."""
    packing: bool = True
    """Several examples share a sample, without seeing each other; false: each is padded."""
    tokenizer: str | None = None
    """Name or folder of a tokenizer, whose chat template is taken; null: a byte-level BPE trained on the records."""
    vocab_size: int | None = None
    """Size of the built-in tokenizer; null: min(8192, the model's table)."""


@dataclass(frozen=True, kw_only=True)
class ClassificationDataConfig(DataConfig):
    """Texts and their classes in .jsonl files; for model.head=sequence-classification."""

    name: str = "classification"
    train: Any = None
    """A path, or a list of paths or of {path, start, end}."""
    valid: Any = None
    """Like train; evaluated during training."""
    test: Any = None
    """Like train; never trained on."""
    text_key: str = "text"
    """Key of the text in a record."""
    label_key: str = "label"
    """Key of the class: its name, or its number from 0."""
    tokenizer: str | None = None
    """Name or folder of a tokenizer; null: a byte-level BPE trained on the texts."""
    vocab_size: int | None = None
    """Size of the built-in tokenizer; null: min(8192, the model's table)."""


@dataclass(frozen=True, kw_only=True)
class SyntheticDataConfig(DataConfig):
    """Uniform random tokens, for timing and tests."""

    name: str = "synthetic"
    vocab_size: int | None = None
    """Largest token id plus one; null: the model's table."""
    samples: int = 4096
    """Samples per epoch."""
