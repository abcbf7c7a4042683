"""A record as the named numbers that trackers draw: `train/loss`, `valid/perplexity`."""

from __future__ import annotations

from collections.abc import Mapping

_NO_NUMBERS = ("kind", "step", "split")


def scalars(record: Mapping[str, object]) -> dict[str, float]:
    """The numbers of a train or eval record by their names; of any other record none.

    What is unknown (null) is left out, a list counts from 0, true is 1.
    """
    if record["kind"] not in ("train", "eval"):
        return {}
    prefix = record["split"] if record["kind"] == "eval" else "train"
    found: dict[str, float] = {}
    for name, value in record.items():
        if name in _NO_NUMBERS:
            continue
        if isinstance(value, int | float):
            found[f"{prefix}/{name}"] = float(value)
        elif isinstance(value, list):
            found |= {f"{prefix}/{name}/{index}": float(item) for index, item in enumerate(value)}
    return found
