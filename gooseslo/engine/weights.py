"""A stage's first weights: random, drawn whole and then sliced, so that no layout changes them.

Each module is drawn by the class's own initialiser from a stream seeded by (run seed, module name). One unit (an
embedding, a block, a norm) is materialised whole at a time and freed again, so a rank never holds the whole model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gooseslo.parallel.names import matches
from gooseslo.parallel.random import derive_seed
from gooseslo.parallel.tensor.layouts import Placement
from gooseslo.policies.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One unit to draw whole: a copy of the stock module (on the meta device) under the name that seeds it."""

    name: str
    unit: nn.Module
    targets: dict[str, str]
    """The unit's parameter -> the stage's parameter that takes its slice."""


def plan_draws(model: nn.Module, policy: Policy, layers: range, *, is_first: bool, is_last: bool) -> list[Draw]:
    """The units of one stage, taken from the whole stock `model` on the meta device before any part is cut.

    A parameter tied to one on the same stage is drawn by its owner alone; one tied to another stage's is drawn from a
    copy of the owner, so both ends begin equal.
    """
    names = [f"{policy.layers}.{index}" for index in layers]
    names += [*(policy.first if is_first else ()), *(policy.last if is_last else ())]
    parameters = dict(model.named_parameters(remove_duplicate=False))
    draws, tied = [], []
    for name in names:
        targets = {}
        for key, parameter in model.get_submodule(name).named_parameters():
            owner = policy.tied.get(f"{name}.{key}")
            if owner is None or parameters[owner] is not parameter:
                targets[key] = f"{name}.{key}"
            elif not any(owner.startswith(f"{present}.") for present in names):
                tied.append((owner, f"{name}.{key}"))
        if targets:
            draws.append(Draw(name=name, unit=copy.deepcopy(model.get_submodule(name)), targets=targets))
    for owner, target in tied:
        unit, _, key = owner.rpartition(".")
        draws.append(Draw(name=unit, unit=copy.deepcopy(model.get_submodule(unit)), targets={key: target}))
    return draws


@torch.no_grad()
def draw_weights(model: Any, draws: list[Draw], placements: dict[str, Placement], *, seed: int) -> None:
    """Fill the materialised stage `model` with its slices of the random initial weights.

    Draws are fp32, cast to the parameter's dtype. The caller's random state is left as it was.
    """
    local = dict(model.named_parameters(remove_duplicate=False))
    with torch.random.fork_rng(devices=[]):
        for draw in draws:
            unit = copy.deepcopy(draw.unit).to_empty(device="cpu")
            for name, module in _children_first(unit, draw.name):
                torch.manual_seed(derive_seed(seed, "init", name))
                model._init_weights(module)
            for key, target in draw.targets.items():
                local[target].copy_(placements[target].take(unit.get_parameter(key)))


@torch.no_grad()
def fill_buffers(model: Any, policy: Policy) -> None:
    """Fill the buffers of modules that every stage keeps, by the class's own initialiser and in the buffers' dtype."""
    for name, module in model.named_modules():
        if any(matches(pattern, name) for pattern in policy.everywhere):
            whole = copy.deepcopy(module).to_empty(device="cpu")
            model._init_weights(whole)
            for key, buffer in module.named_buffers():
                buffer.copy_(whole.get_buffer(key))


def _children_first(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Modules below before their parent: a parent's initialiser may redraw its children's weights (GPT-2 does)."""
    for key, child in module.named_children():
        yield from _children_first(child, f"{name}.{key}")
    yield name, module
