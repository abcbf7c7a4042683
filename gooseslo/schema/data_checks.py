"""What the `data` group must satisfy by itself: which files it names, in which parts and with which weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from gooseslo.errors import Fault
from gooseslo.schema.data_groups import (
    ClassificationDataConfig,
    DataConfig,
    IndexedDataConfig,
    InstructionDataConfig,
    StdlibDataConfig,
    TextDataConfig,
)
from gooseslo.schema.keys import nearest
from gooseslo.schema.quoting import shortened

SPLITS = ("train", "valid", "test")
_FILES = TextDataConfig | InstructionDataConfig | ClassificationDataConfig
_OWN_TOKENIZER = StdlibDataConfig | _FILES


def check_data(data: DataConfig) -> list[Fault]:
    """Every violation that the group's values alone can show."""
    faults = []
    if isinstance(data, _OWN_TOKENIZER) and None not in (data.tokenizer, data.vocab_size):
        rule = "sizes the built-in tokenizer, but data.tokenizer names another"
        way_out = "leave one of them out"
        faults.append(Fault(key="data.vocab_size", value=data.vocab_size, rule=rule, way_out=way_out))
    if isinstance(data, _FILES | IndexedDataConfig):
        fields = ("path", "start", "end") if isinstance(data, _FILES) else ("path", "weight", "start", "end")
        what = "FILE" if isinstance(data, _FILES) else "PREFIX"
        if data.train is None:
            way_out = f"data.train={what}, or data.train=[{what},{what}]"
            faults.append(Fault(key="data.train", rule=f"is required with data={data.name}", way_out=way_out))
        for split in SPLITS:
            found = list(_check_paths(f"data.{split}", getattr(data, split), fields))
            if not found and isinstance(data, IndexedDataConfig):
                found = list(_check_parts(f"data.{split}", getattr(data, split)))
            faults += found
    return faults


def _check_paths(key: str, value: Any, fields: tuple[str, ...]) -> Iterator[Fault]:
    """A path, or a list of paths or of mappings with these fields; the first fault."""
    if value is None:
        return
    shown = shortened(value)
    if value in ("", []):
        yield Fault(key=key, value=shown, rule="names no file", way_out=f"{key}=null for none")
        return
    for index, item in enumerate(value if isinstance(value, list) else [value]):
        name = f"{key}[{index}]" if isinstance(value, list) else key
        path = item.get("path") if isinstance(item, Mapping) else item
        if isinstance(item, Mapping) and (unknown := sorted(set(map(str, item)) - set(fields))):
            closest = nearest(unknown[0], fields)
            way_out = f"fields: {', '.join(fields)}" if closest is None else f"nearest: {closest}"
            yield Fault(key=name, value=shortened(item), rule=f"has no field {', '.join(unknown)}", way_out=way_out)
            return
        if isinstance(item, Mapping) and path is None:
            yield Fault(key=name, value=shortened(item), rule="has no path", way_out="{path: NAME, ...}")
            return
        if not isinstance(path, str) or not path:
            way_out = "a name that looks like a number needs quotes of its own: \"['2024_01']\""
            if isinstance(path, float) and "weight" in fields:
                way_out = f"a weight stands beside its path: '{key}=[{{path: NAME, weight: {path}}}, ...]'"
            yield Fault(key=name, value=shortened(path), rule="is not a path", way_out=way_out)
            return


def _check_parts(key: str, value: Any) -> Iterator[Fault]:
    """Weights and ranges of the parts that a list, or a single mapping, names."""
    parts = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, Mapping)]
    keyed = [(f"{key}[{index}]", item) for index, item in enumerate(value)] if isinstance(value, list) else []
    for name, item in keyed or [(key, item) for item in parts]:
        if isinstance(item, Mapping):
            yield from _check_part(name, item)
    weights = [item["weight"] for item in parts if item.get("weight") is not None]
    if weights and len(weights) < (len(value) if isinstance(value, list) else 1):
        rule = f"{len(weights)} of {len(value)} have a weight"
        yield Fault(key=key, value=shortened(value), rule=rule, way_out="give all of them one, or none (by size)")
    elif weights and not any(weights):
        yield Fault(key=key, value=shortened(value), rule="all weights are 0", way_out="one at least must be above")


def _check_part(key: str, part: Mapping[str, Any]) -> Iterator[Fault]:
    for field in ("weight", "start", "end"):
        number = part.get(field)
        if number is not None and (isinstance(number, bool) or not isinstance(number, int | float)):
            yield Fault(key=f"{key}.{field}", value=shortened(number), rule="is not a number")
            return
    weight, start, end = part.get("weight"), part.get("start"), part.get("end")
    if weight is not None and not (math.isfinite(weight) and weight >= 0):
        yield Fault(key=f"{key}.weight", value=weight, rule="must be at least 0")
    start, end = 0 if start is None else start, 1 if end is None else end
    if not 0 <= start < end <= 1:
        rule = "must be 0 <= start < end <= 1: fractions of its documents"
        yield Fault(key=key, value=shortened({"start": start, "end": end}), rule=rule)
