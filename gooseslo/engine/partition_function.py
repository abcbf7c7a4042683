"""`parallel.partition=package.module:function`: layers per stage by a function of the user's.

Imports no model class, so that a wrong path is told within seconds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from gooseslo.engine.import_path import import_by_path, import_fault
from gooseslo.errors import ConfigError

_KEY = "parallel.partition"


def check_partition(partition: object) -> None:
    """ConfigError for the path of a function that cannot be imported; its module is imported."""
    if isinstance(partition, str) and ":" in partition:
        _load(partition)


def partition_by_function(
    path: str, *, num_layers: int, num_stages: int, parameters: Sequence[int], first: int, last: int
) -> list[int]:
    """What the user's function gives for `parameters` per layer, and those that the two ends have besides."""
    function = _load(path)

    def fault(rule: str, way_out: str = "") -> ConfigError:
        way_out = way_out or f"it must give a list of {num_stages} numbers, one a stage, that sum to {num_layers}"
        return import_fault(_KEY, path, rule, way_out)

    try:
        result = function(
            num_layers=num_layers, num_stages=num_stages, parameters=list(parameters), first=first, last=last
        )
    except (Exception, SystemExit) as error:
        way_out = "it is called with num_layers, num_stages, parameters (a list), first and last by name"
        raise fault(f"fails: {type(error).__name__}: {' '.join(str(error).split())[:200]}", way_out) from error
    try:
        counts = [operator.index(each) for each in result]
    except TypeError as error:
        raise fault(f"gives {_shown(result)}, which is no list of whole numbers") from error
    if len(counts) != num_stages:
        raise fault(f"gives {len(counts)} stages, but there are {num_stages}")
    if min(counts) < 1:
        raise fault(f"gives {_shown(counts)}: each stage needs a layer")
    if sum(counts) != num_layers:
        raise fault(f"gives {_shown(counts)}, which sums to {sum(counts)}, but the model has {num_layers} layers")
    return counts


def _load(path: str) -> Callable[..., Any]:
    found = import_by_path(path, key=_KEY, what="function")
    if not callable(found):
        raise import_fault(_KEY, path, "is no function", "it is called with num_layers, num_stages, parameters, ...")
    return found  # type: ignore[no-any-return]


def _shown(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:59]}…"
