"""Proof, on the meta device and before anything starts, that a policy fits its model.

Every name of the policy resolves; every parameter is claimed exactly once; every split layer lies in a region; every
dropout has a stream. A name that matches nothing would otherwise leave a layer unsplit in silence.
"""

from __future__ import annotations

from torch import nn

from gooseslo.errors import PolicyError
from gooseslo.parallel.names import lookup, matches, matching
from gooseslo.policies.policy import Column, KeyValueColumn, Policy, Row

_SHOWN = 4  # one wrong name misfits every layer


def lint(model: nn.Module, policy: Policy, *, tied: bool) -> None:
    """Raise PolicyError with the first misfits of `policy` with the whole `model` (on any device), and their number."""
    modules = dict(model.named_modules())
    faults = [*_unresolved(modules, policy), *_claims(model, policy), *_regions(modules, policy)]
    faults += _dropouts(modules, policy)
    faults += _buffers(model, policy)
    if tied:
        parameters = dict(model.named_parameters(remove_duplicate=False))
        for alias, owner in policy.tied.items():
            if parameters.get(alias) is None or parameters.get(alias) is not parameters.get(owner):
                faults.append(f"{alias} is not tied to {owner} in the model")
    if faults:
        more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        shown = "; ".join(faults[:_SHOWN]) + more
        raise PolicyError(f"the policy for {policy.architecture} does not fit the model: {shown}")


def _unresolved(modules: dict[str, nn.Module], policy: Policy) -> list[str]:
    """Names of the policy that resolve to no module, and attributes that the module lacks."""
    names = [
        policy.layers,
        *policy.first,
        *policy.last,
        *policy.stand_ins,
        *policy.splits,
        *policy.replicated,
        *policy.regions,
        *policy.everywhere,
        *policy.divided,
        *policy.divided_by_copies,
        *policy.replicated_dropout,
        *policy.split_dropout,
    ]
    faults = [
        f"{name} names no module"
        for name in dict.fromkeys(names)
        if not any(matches(name, module) for module in modules)
    ]
    for pattern, attributes in (*policy.divided.items(), *policy.divided_by_copies.items()):
        for name, module in modules.items():
            if matches(pattern, name):
                faults += [f"{name} has no {attribute}" for attribute in attributes if not hasattr(module, attribute)]
    return faults


def _claims(model: nn.Module, policy: Policy) -> list[str]:
    """Parameters claimed by no module of the policy, or by several; modules that belong to no stage or to two."""
    faults = []
    claims = [*policy.splits, *policy.replicated]
    ends = [*policy.first, *policy.last]
    for name, _ in model.named_parameters(remove_duplicate=False):
        owner = name.rpartition(".")[0]
        claimed = matching(claims, owner)
        if len(claimed) != 1:
            faults.append(f"{name} is claimed {len(claimed)} times" + (f" ({', '.join(claimed)})" if claimed else ""))
        places = [end for end in ends if owner == end or owner.startswith(f"{end}.")]
        places += [policy.layers] if owner.startswith(f"{policy.layers}.") else []
        if len(places) != 1:
            faults.append(f"{name} belongs to {len(places)} places of the pipeline")
    return faults


def _regions(modules: dict[str, nn.Module], policy: Policy) -> list[str]:
    """Column and row layers outside of any region, in two, or in one that lacks the other kind."""
    faults = []
    regions = [name for name in modules if matching(policy.regions, name)]
    kinds: dict[str, set[str]] = {name: set() for name in regions}
    for name in modules:
        split = lookup(policy.splits, name)
        if isinstance(split, Column | KeyValueColumn | Row):
            around = [region for region in regions if name.startswith(f"{region}.")]
            if len(around) != 1:
                faults.append(f"{name} is split, and lies in {len(around)} regions")
            for region in around:
                kinds[region].add("row" if isinstance(split, Row) else "column")
    faults += [
        f"the region {region} has no {kind} layer"
        for region, found in kinds.items()
        for kind in sorted({"column", "row"} - found)
    ]
    return faults


def _buffers(model: nn.Module, policy: Policy) -> list[str]:
    """Buffers of modules that no stage fills, and parameters of modules that every stage would have."""
    faults = []
    for name, _ in model.named_buffers():
        if not matching(policy.everywhere, name.rpartition(".")[0]):
            faults.append(f"{name} is a buffer, and nothing would fill it")
    for name, _ in model.named_parameters():
        if matching(policy.everywhere, name.rpartition(".")[0]):
            faults.append(f"{name} is a parameter of a module that every stage keeps")
    return faults


def _dropouts(modules: dict[str, nn.Module], policy: Policy) -> list[str]:
    """Dropout modules without a random stream: their masks would depend on the layout."""
    faults = []
    for name, module in modules.items():
        if isinstance(module, nn.Dropout):
            own = matching(policy.replicated_dropout, name)
            inside = matching(policy.split_dropout, name.rpartition(".")[0])
            if not own and not inside:
                faults.append(f"{name} drops without a random stream")
    return faults
