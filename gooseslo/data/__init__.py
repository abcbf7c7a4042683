"""Text to token files, packed samples, and the order in which a run sees them. Knows nothing of models' parallelism."""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "DatasetBlender": "order.blend",
    "DatasetForCausalLM": "indexed.causal_lm",
    "DatasetPreprocessor": "preprocess.preprocessor",
    "DistributedProxySampler": "order.samplers",
    "InfiniteDataLoader": "order.samplers",
}
"""Class -> module; imported when it is asked for, since some of what they need takes time."""

__all__ = list(_PUBLIC)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
