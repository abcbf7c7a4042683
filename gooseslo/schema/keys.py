"""The keys of a job, their types, and which of them a misspelt one was meant to be."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Any

from gooseslo.schema.groups import TrainJob
from gooseslo.schema.store import SCHEMAS
from gooseslo.schema.values import OPEN

OPEN_KEY = "model.config"
"""Below this key any name goes: fields of the architecture's Hugging Face config."""
OPTIONS_KEY = "optimizer.options"
"""Below this key any name goes: arguments of the optimizer's class in torch.optim."""
DEEPSPEED_KEY = "zero.deepspeed"
"""Below this key any name goes: keys of DeepSpeed's configuration."""
OPEN_KEYS = (OPEN_KEY, OPTIONS_KEY, DEEPSPEED_KEY)


def keys_of(config: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> type of every leaf of a job (or of a config class), in the order of its fields."""
    schema = config if isinstance(config, type) else type(config)
    hints = typing.get_type_hints(schema)
    keys: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        key, hint = f"{prefix}{field.name}", hints[field.name]
        if dataclasses.is_dataclass(hint):
            keys |= keys_of(hint if isinstance(config, type) else getattr(config, field.name), f"{key}.")
        else:
            keys[key] = hint
    return keys


def all_keys(job_type: type) -> dict[str, Any]:
    """The keys of a job under any choice of group options."""
    keys = keys_of(job_type)
    if job_type is TrainJob:
        for group, classes in SCHEMAS.items():
            for schema in classes.values():
                keys |= keys_of(schema, f"{group}.")
    return keys


def type_of(key: str, keys: dict[str, Any]) -> Any:
    """The type of a key, or None where there is no such key."""
    above = open_key_above(key)
    return OPEN if above in keys else keys.get(key)


def open_key_above(key: str) -> str | None:
    """The open key that `key` lies below."""
    return next((above for above in OPEN_KEYS if key.startswith(f"{above}.")), None)


def sections(keys: Iterable[str]) -> set[str]:
    """The keys that hold keys: `train`, `model`, `model.config`."""
    return {key.rpartition(".")[0] for key in keys if "." in key}


def owning_options(key: str) -> list[str]:
    """The `group=schema` choices under which this key exists."""
    group, _, rest = key.partition(".")
    return [f"{group}={name}" for name, schema in SCHEMAS.get(group, {}).items() if rest in keys_of(schema)]


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known key or option that `word` most likely stands for; the last part of a dotted key weighs most."""

    def similarity(candidate: str) -> float:
        head, _, leaf = candidate.rpartition(".")
        word_head, _, word_leaf = word.rpartition(".")
        by_leaf = SequenceMatcher(None, word_leaf, leaf).ratio()
        if not word_head:
            return by_leaf
        return 0.7 * by_leaf + 0.3 * SequenceMatcher(None, word_head, head).ratio()

    best = max(known, key=similarity, default=None)
    return best if best is not None and similarity(best) >= cutoff else None


def listed(names: Iterable[str], limit: int = 16) -> str:
    """The names in one line, cut with a count."""
    names = list(names)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
