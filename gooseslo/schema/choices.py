"""Which option of each group a command line and a configuration file choose, and which values are left to set."""

from __future__ import annotations

from dataclasses import dataclass, field

from gooseslo.errors import Fault
from gooseslo.schema.keys import OPEN_KEY, listed, nearest
from gooseslo.schema.optimizers import TORCH, name_fault, option_of
from gooseslo.schema.overrides import Assignment
from gooseslo.schema.store import RECIPE, group_names, group_options
from gooseslo.schema.values import Scalar

NAMED_GROUPS = ("model", "optimizer", "lr_schedule", "data", "launcher")
"""Groups whose config has a `name`: setting it to an option's name chooses that option."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    options: dict[str, str]
    """Group -> option, where one was chosen."""
    values: list[Assignment]
    """What is to be set over the options, the file's first."""
    faults: list[Fault] = field(default_factory=list)
    whole_model: bool = False
    """The file gives the model entirely (as a run's config.yaml does), so no option lies under it."""


def choose_options(filed: list[Assignment], typed: list[Assignment]) -> Choices:
    """The defaults lie under the recipe, the recipe under the file, the file under the command line.

    A group whose option is chosen on the command line takes nothing from the file: values made for one optimizer
    or model mean nothing to another.
    """
    faults: list[Fault] = []
    options, values = _split(typed, faults)
    filed = [item for item in filed if item.key.partition(".")[0] not in options]
    whole_model = _is_whole_model(filed)
    from_file, filed_values = _split(filed, faults, plain_names=("model",) if whole_model else ())
    return Choices(options=from_file | options, values=[*filed_values, *values], faults=faults, whole_model=whole_model)


def _is_whole_model(filed: list[Assignment]) -> bool:
    keys = [item.key for item in filed]
    has_config = any(key == OPEN_KEY or key.startswith(f"{OPEN_KEY}.") for key in keys)
    return has_config and "model.name" in keys and "model.architecture" in keys


def _split(
    assignments: list[Assignment], faults: list[Fault], plain_names: tuple[str, ...] = ()
) -> tuple[dict[str, str], list[Assignment]]:
    """The options chosen (the last word counts), and the other assignments.

    `plain_names` are groups whose name is only text.
    """
    explicit: dict[str, str] = {}
    for item in assignments:
        if item.key in group_names() and not isinstance(item.raw, dict):
            _choose(item, item.key, explicit, faults)
    options, values = dict(explicit), []
    for item in assignments:
        group, _, rest = item.key.partition(".")
        if item.key in group_names() and not isinstance(item.raw, dict):
            continue
        if rest != "name" or group not in NAMED_GROUPS or group in plain_names:
            values.append(item)
        elif group == "model" and (group in explicit or str(item.raw) not in group_options(group)):
            values.append(item)  # no option: only what the run is called after
        elif group == "optimizer":
            _choose_optimizer(item, explicit.get(group), options, values, faults)
        elif group in explicit and str(item.raw) != explicit[group]:
            faults.append(item.fault(f"contradicts {group}={explicit[group]}"))
        else:
            _choose(item, group, options, faults)
    return options, values


def _choose_optimizer(
    item: Assignment, explicit: str | None, options: dict[str, str], values: list[Assignment], faults: list[Fault]
) -> None:
    """`optimizer.name`: an option's name, a class of torch.optim that has an option, or one that has none."""
    option = option_of(str(item.raw))
    if option is None:
        fault = name_fault(item.shown, item.raw)
        faults.append(item.fault(fault.rule, fault.way_out))
    elif explicit not in (None, option):
        faults.append(item.fault(f"contradicts optimizer={explicit}"))
    else:
        options["optimizer"] = option
        if option == TORCH:
            values.append(item)


def _choose(item: Assignment, group: str, options: dict[str, str], faults: list[Fault]) -> None:
    known = group_options(group)
    if item.raw is None:
        faults.append(item.fault("a group always has an option", f"options: {listed(known)}"))
    elif group == RECIPE and item.raw == Scalar("null"):
        options.pop(group, None)
    elif str(item.raw) in known:
        options[group] = str(item.raw)
    else:
        closest = nearest(str(item.raw), known)
        hint = f"nearest: {closest}; " if closest else ""
        if group == "optimizer" and option_of(str(item.raw)) is not None:
            hint = f"give optimizer.name={item.raw}; "
        faults.append(item.fault(f"{group} has no such option", f"{hint}options: {listed(known)}"))
