"""Proof, on the meta device and before anything starts, that a policy fits its model.

Every name of the policy resolves; every parameter is claimed exactly once; every dropout has a stream. A name that
matches nothing would otherwise leave a layer unsplit in silence.
"""

from __future__ import annotations

from torch import nn

from gooseslo.errors import PolicyError
from gooseslo.parallel.names import matches, matching
from gooseslo.policies.policy import Policy

_SHOWN = 3  # a misfit is mostly one of every layer


def lint(model: nn.Module, policy: Policy, *, tied: bool) -> None:
    """Raise PolicyError with every misfit of `policy` with the whole `model` (on any device)."""
    modules = dict(model.named_modules())
    faults = [*_unresolved(modules, policy), *_claims(model, policy), *_dropouts(modules, policy)]
    faults += [f"{name} is a buffer, and nothing would fill it" for name, _ in model.named_buffers()]
    if tied:
        parameters = dict(model.named_parameters(remove_duplicate=False))
        for alias, owner in policy.tied.items():
            if parameters.get(alias) is None or parameters.get(alias) is not parameters.get(owner):
                faults.append(f"{alias} is not tied to {owner} in the model")
    if faults:
        more = [f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
        listed = "; ".join([*faults[:_SHOWN], *more])
        raise PolicyError(f"the policy for {policy.architecture} does not fit the model: {listed}")


def _unresolved(modules: dict[str, nn.Module], policy: Policy) -> list[str]:
    """Names of the policy that resolve to no module, and attributes that the module lacks."""
    names = [
        policy.layers,
        *policy.first,
        *policy.last,
        *policy.stand_ins,
        *policy.splits,
        *policy.replicated,
        *policy.divided,
        *policy.replicated_dropout,
        *policy.split_dropout,
    ]
    faults = [
        f"{name} names no module"
        for name in dict.fromkeys(names)
        if not any(matches(name, module) for module in modules)
    ]
    for pattern, attributes in policy.divided.items():
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
