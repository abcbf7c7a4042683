"""`parallel.schedule=auto`: the schedule that keeps its ranks least idle, by simulation (docs/decisions/0020)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gooseslo.parallel.pipeline.placement import StagePlacement
from gooseslo.parallel.pipeline.tables import table_of
from gooseslo.schema.schedule_table import Simulation, Table, held, simulate
from gooseslo.schema.schedules import RULES

WORTH = 1.02
"""So many times as fast a schedule must be for 1f1b to give way: it is the simplest and holds the least."""


@dataclass(frozen=True, kw_only=True)
class SimulatedSchedule:
    name: str
    placement: StagePlacement
    table: Table
    simulation: Simulation

    @property
    def most_held(self) -> float:
        """Micro-batches whose activations the fullest rank holds at once; 1: through all of its layers."""
        fullest = max(sum(count for _, count in moment) for row in self.table for moment in held(row))
        return fullest / self.placement.virtual_stages


def simulated(name: str, virtual_stages: int, *, pp: int, num_micro: int) -> SimulatedSchedule:
    """One of torch's schedules under these sizes, which fit it."""
    placement = StagePlacement(pp=pp, virtual_stages=virtual_stages, is_v=RULES[name].is_v and virtual_stages == 2)
    table = table_of(name, placement, num_micro=num_micro)
    simulation = simulate(table, num_stages=placement.num_stages)
    return SimulatedSchedule(name=name, placement=placement, table=table, simulation=simulation)


def ranked(candidates: Iterable[tuple[str, int]], *, pp: int, num_micro: int) -> list[SimulatedSchedule]:
    """The candidates (schedule, stages a rank), best first; of equal ones that which holds least, then as given."""
    found = [simulated(name, stages, pp=pp, num_micro=num_micro) for name, stages in candidates]
    found.sort(key=lambda each: (round(each.simulation.time, 9), each.most_held))
    plain = next((each for each in found if each.name == "1f1b"), None)
    if plain is not None and plain.simulation.time < WORTH * found[0].simulation.time:
        found.remove(plain)
        found.insert(0, plain)
    return found


def reason(chosen: SimulatedSchedule, others: Iterable[SimulatedSchedule]) -> str:
    """Why this one, for the plan."""
    idle = f"ranks idle for {chosen.simulation.idle:.0%} of a step"
    others = [each for each in others if each is not chosen]
    plain = next((each for each in others if each.name == "1f1b"), None)
    if plain is not None:
        return f"{idle}, with 1f1b {plain.simulation.idle:.0%}"
    if not others:
        return f"{idle}; no other fits"
    if chosen.name == "1f1b":
        fastest = min(others, key=lambda each: each.simulation.time)
        return f"{idle}, with {fastest.name} {fastest.simulation.idle:.0%}"
    return f"{idle}; 1f1b does not fit"
