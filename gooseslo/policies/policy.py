"""What a policy can say: which modules are split and how, what each pipeline end owns, what draws random numbers.

Names are those of the Hugging Face model, with `*` for a layer's index. `parallel/lint` proves that each name
resolves and that each parameter is claimed exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Column:
    """A linear whose output features are split; `blocks` equal projections lie side by side in it (3: q, k, v)."""

    blocks: int = 1


@dataclass(frozen=True)
class Row:
    """A linear whose input features are split; its bias is whole and added once, after the sum over ranks."""


@dataclass(frozen=True)
class VocabEmbedding:
    """An embedding table whose rows are split over the tp axis, in any uneven way."""


@dataclass(frozen=True)
class VocabHead:
    """The head that gives logits: its output rows are split as the embedding's; logits stay split."""


Split = Column | Row | VocabEmbedding | VocabHead


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How one architecture is split."""

    architecture: str
    layers: str
    """The list of transformer blocks."""
    first: tuple[str, ...]
    """Modules that only the first stage has: what turns token ids into hidden states."""
    last: tuple[str, ...]
    """Modules that only the last stage has: final norm and head."""
    stand_ins: Mapping[str, Literal["identity", "zero"]]
    """What replaces a module on the stages that lack it, so that the base model's own forward still runs."""
    splits: Mapping[str, Split]
    replicated: tuple[str, ...]
    """Modules whose parameters every tp rank holds whole."""
    divided: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Integer attributes that become their tp-th part."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Alias -> parameter it is tied to, where the config says `tie_word_embeddings`."""
    replicated_dropout: tuple[str, ...] = ()
    """Modules that drop parts of activations equal on all tp ranks."""
    split_dropout: tuple[str, ...] = ()
    """Modules that drop parts of activations that the tp ranks share out (attention weights)."""
