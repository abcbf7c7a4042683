"""What a policy can say: which modules are split and how, what each pipeline end owns, what draws random numbers.

Names are those of the Hugging Face model, with `*` for a layer's index. `parallel/lint` proves that each name
resolves and that each parameter is claimed exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal


@dataclass(frozen=True)
class Column:
    """A linear whose output features are split; `blocks` equal projections lie side by side in it (3: q, k, v)."""

    blocks: int = 1


@dataclass(frozen=True)
class KeyValueColumn:
    """A linear whose output features are the key-value heads of grouped-query attention.

    tp divides their number (`heads`, a field of the config), or is a multiple of it: then neighbouring ranks hold
    copies of one head, and each copy's gradient is the sum over them.
    """

    heads: str = "num_key_value_heads"


@dataclass(frozen=True)
class Row:
    """A linear whose input features are split; its bias is whole and added once, after the sum over ranks."""


@dataclass(frozen=True)
class VocabEmbedding:
    """An embedding table whose rows are split over the tp axis, in any uneven way."""


@dataclass(frozen=True)
class VocabHead:
    """The head that gives logits: its output rows are split as the embedding's; logits stay split."""


SCORE = "score"
"""The linear that gives one logit a class, in every `ForSequenceClassification` of Hugging Face's decoders."""

Split = Column | KeyValueColumn | Row | VocabEmbedding | VocabHead


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
    attention: str
    """The attention, by its name in a block."""
    regions: tuple[str, ...]
    """Modules that each rank computes a part of: column layers at their input, a row layer at their end."""
    everywhere: tuple[str, ...] = ()
    """Modules that every stage keeps, with buffers that the class's own initialiser fills (rotary frequencies)."""
    divided: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Integer attributes that become their tp-th part."""
    divided_by_copies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Integer attributes that are divided by the number of ranks that hold one key-value head."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Alias -> parameter it is tied to, where the config says `tie_word_embeddings`."""
    replicated_dropout: tuple[str, ...] = ()
    """Modules that drop parts of activations equal on all tp ranks."""
    split_dropout: tuple[str, ...] = ()
    """Modules that drop parts of activations that the tp ranks share out (attention weights)."""

    def classifying(self) -> Policy:
        """The policy of the same base model under a classification head, which every tp rank of the last stage has."""
        heads = [name for name, split in self.splits.items() if isinstance(split, VocabHead)]
        return replace(
            self,
            last=(*(name for name in self.last if name not in heads), SCORE),
            splits={name: split for name, split in self.splits.items() if name not in heads},
            replicated=(*self.replicated, SCORE),
            tied={},
        )
