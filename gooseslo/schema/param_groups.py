"""`optimizer.groups`: settings of their own for the parameters whose names fit a pattern.

Patterns are globs on the Hugging Face names of the whole model, a tied weight under its owner's name, so that a group
is the same in every layout; `*` stands for any text, dots included. A parameter fits at most one pattern.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any

from gooseslo.errors import Fault
from gooseslo.schema.groups import OptimizerConfig
from gooseslo.schema.keys import listed, nearest
from gooseslo.schema.optimizers import CLASSES, class_name, fits, kind_of
from gooseslo.schema.quoting import shortened
from gooseslo.schema.ranges import Bound

KEY = "optimizer.groups"
NUM_NEAREST = 3


def settings_of(groups: Mapping[str, Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """The settings of the group that the parameter is in; none where it is in none."""
    return next((settings for pattern, settings in groups.items() if fnmatchcase(name, pattern)), {})


def setting_names(config: OptimizerConfig) -> list[str]:
    """What a group of this optimizer can set: its own keys, and further arguments of its class."""
    facts = CLASSES[class_name(config)]
    return list(dict.fromkeys([*_typed_settings(config), *facts.arguments]))


def _typed_settings(config: OptimizerConfig) -> list[str]:
    names = [field.name for field in dataclasses.fields(config) if field.name not in ("name", "groups", "options")]
    return names if CLASSES[class_name(config)].decays else [name for name in names if name != "weight_decay"]


def check_settings(config: OptimizerConfig, bounds: Mapping[str, Bound]) -> list[Fault]:
    """Settings that the optimizer does not have, or whose values are out of `bounds` (by `optimizer.<setting>`)."""
    faults: list[Fault] = []
    for pattern, settings in config.groups.items():
        if not isinstance(pattern, str):
            faults.append(_fault(pattern, settings, f"the pattern {pattern} is not a text", "put it in quotes"))
        elif not isinstance(settings, dict) or not settings:
            way_out = f"settings: {listed(setting_names(config))}"
            faults.append(_fault(pattern, settings, "a pattern needs a mapping of settings", way_out))
        else:
            checked = [_check(config, pattern, name, value, bounds) for name, value in settings.items()]
            faults += [fault for fault in checked if fault is not None]
    return faults


def check_patterns(groups: Mapping[str, Mapping[str, Any]], names: Collection[str]) -> list[Fault]:
    """Patterns that fit none of the model's parameters, and parameters that fit several."""
    fitting = {pattern: [name for name in names if fnmatchcase(name, pattern)] for pattern in groups}
    faults = []
    for pattern, found in fitting.items():
        if not found:
            way_out = f"nearest: {listed(_nearest_patterns(pattern, names))}"
            faults.append(_fault(pattern, groups[pattern], "fits no parameter of the model", way_out))
    patterns = list(fitting)
    for index, pattern in enumerate(patterns):
        for other in patterns[:index]:
            if shared := [name for name in fitting[pattern] if name in fitting[other]]:
                rule = f'{shared[0]} fits "{other}" as well ({len(shared)} parameters in all)'
                way_out = "a parameter has one group: make the patterns narrower"
                faults.append(_fault(pattern, groups[pattern], rule, way_out))
    return faults


def _check(config: OptimizerConfig, pattern: str, name: str, value: Any, bounds: Mapping[str, Bound]) -> Fault | None:
    known = setting_names(config)
    if name not in known:
        closest = nearest(str(name), known)
        way_out = f"nearest: {closest}; " * (closest is not None) + f"settings: {listed(known)}"
        return _fault(pattern, {name: value}, f"{config.name} has no setting {shortened(name)}", way_out)
    if name not in _typed_settings(config):
        default = CLASSES[class_name(config)].arguments[name]
        if not fits(value, default):
            return _fault(pattern, {name: value}, f"{name} must be {kind_of(default)}")
        return None
    takes_list = isinstance(getattr(config, name), list)
    numbers = value if isinstance(value, list) else [value]
    if takes_list != isinstance(value, list) or not all(map(_is_number, numbers)):
        kind = "a list of numbers" if takes_list else "a number"
        return _fault(pattern, {name: value}, f"{name} must be {kind}")
    bound = bounds[f"optimizer.{name}"]
    if not bound.holds(value):
        return _fault(pattern, {name: value}, f"{name} {bound.rule}")
    if name == "lr" and value and not config.lr:
        way_out = "give optimizer.lr the rate of the other parameters, and lr: 0 to those that must not move"
        return _fault(pattern, {name: value}, "follows the schedule of optimizer.lr, which is 0", way_out)
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fault(pattern: Any, settings: Any, rule: str, way_out: str = "") -> Fault:
    """A fault of one entry, shown as it can be typed."""
    shown = json.dumps({str(pattern): settings}, default=str)
    return Fault(key=KEY, value=shortened(shown, 100), rule=rule, way_out=way_out)


def _nearest_patterns(pattern: str, names: Collection[str]) -> list[str]:
    """What the pattern may have been meant to be: the most similar names, with `*` for a layer's number."""
    candidates = dict.fromkeys(re.sub(r"\.\d+(?=\.)", ".*", name) for name in names)
    found: list[str] = []
    for _ in range(min(NUM_NEAREST, len(candidates))):
        closest = nearest(pattern, candidates, cutoff=0)
        assert closest is not None, "a cutoff of 0 leaves none out"
        del candidates[closest]
        found.append(closest)
    return found
