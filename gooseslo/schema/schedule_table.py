"""A pipeline schedule as a table: what each rank computes, in order; simulated here without any process.

An action is written as torch does: `1F0` is the forward pass of micro-batch 0 on stage 1. B is the whole backward pass;
I and W are its halves, the gradients of the inputs and of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Action(NamedTuple):
    stage: int
    kind: str
    """F, B, I or W."""
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


Table = tuple[tuple[Action, ...], ...]
"""The actions of each rank, in the order in which it computes them."""


def splits_backward(table: Table) -> bool:
    """Whether weight gradients are computed apart from those of the inputs."""
    return any(action.kind == "W" for row in table for action in row)


def rank_of_stage(stage: int, *, pp: int, is_v: bool) -> int:
    """Where a stage lies: dealt round and round (a loop), or down the ranks and up again (a V)."""
    turn, place = divmod(stage, pp)
    return pp - 1 - place if is_v and turn % 2 else place


TIMES = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
"""A forward pass and either half of a backward pass take equally long: each is one matrix product a linear layer."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """What a table comes to where every stage takes equally long and messages take no time."""

    time: float
    """Of a step; 1 is the forward pass of one micro-batch through all stages of a rank."""
    idle: float
    """Share of the step for which a rank waits, on average."""
    stuck: tuple[tuple[int, Action, Action], ...] = ()
    """(rank, the action it cannot begin, what that waits for) of each rank that never ends."""


def needs(action: Action, num_stages: int) -> list[tuple[Action, ...]]:
    """What must be done before an action can begin: of each tuple, any one."""
    stage, kind, micro = action
    if kind == "F":
        return [] if stage == 0 else [(Action(stage - 1, "F", micro),)]
    if kind == "W":
        return [(Action(stage, "I", micro),)]
    own: list[tuple[Action, ...]] = [(Action(stage, "F", micro),)]
    if stage == num_stages - 1:
        return own
    return [*own, (Action(stage + 1, "B", micro), Action(stage + 1, "I", micro))]


def simulate(table: Table, *, num_stages: int) -> Simulation:
    """Run a table: each rank in its order, each action as soon as what it needs is there."""
    virtual_stages = num_stages / len(table)
    done: dict[Action, float] = {}
    place, free = [0] * len(table), [0.0] * len(table)
    progress = True
    while progress:
        progress = False
        for rank, actions in enumerate(table):
            while place[rank] < len(actions):
                action = actions[place[rank]]
                ready = _ready_at(action, num_stages, done)
                if ready is None:
                    break
                free[rank] = max(free[rank], ready) + TIMES[action.kind] / virtual_stages
                done[action] = free[rank]
                place[rank] += 1
                progress = True
    stuck = tuple(
        (rank, actions[place[rank]], _missing(actions[place[rank]], num_stages, done))
        for rank, actions in enumerate(table)
        if place[rank] < len(actions)
    )
    time = max(free)
    busy = sum(TIMES[action.kind] for actions in table for action in actions) / num_stages
    return Simulation(time=time, idle=1 - busy / time if time else 0.0, stuck=stuck)


def _ready_at(action: Action, num_stages: int, done: dict[Action, float]) -> float | None:
    """When all that an action needs is there; None: not yet."""
    ready = 0.0
    for ways in needs(action, num_stages):
        times = [done[way] for way in ways if way in done]
        if not times:
            return None
        ready = max(ready, min(times))
    return ready


def _missing(action: Action, num_stages: int, done: dict[Action, float]) -> Action:
    return next(ways[0] for ways in needs(action, num_stages) if not any(way in done for way in ways))


def held(actions: Sequence[Action]) -> set[tuple[tuple[int, int], ...]]:
    """The fullest moments of a rank: {((stage, micro-batches whose activations it holds), ...)}.

    A micro-batch is held from its forward pass to the end of its backward pass, of the weights where that comes apart.
    Of two moments of which one is at least as full at every stage, only the fuller is given.
    """
    moments: list[dict[int, int]] = []
    for counts in _counts(actions):
        if not any(_covers(moment, counts) for moment in moments):
            moments = [moment for moment in moments if not _covers(counts, moment)] + [counts]
    return {tuple(sorted(moment.items())) for moment in moments}


def _counts(actions: Sequence[Action]) -> Iterator[dict[int, int]]:
    """Held micro-batches by stage after each forward pass."""
    counts = dict.fromkeys(sorted({action.stage for action in actions}), 0)
    for action in actions:
        if action.kind == "F":
            counts[action.stage] += 1
            yield dict(counts)
        elif action.kind in ("B", "W"):
            counts[action.stage] -= 1


def _covers(fuller: dict[int, int], other: dict[int, int]) -> bool:
    return all(fuller[stage] >= count for stage, count in other.items())
