"""What each pipeline schedule asks of the job: stages a rank, and micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

from gooseslo.errors import Fault
from gooseslo.schema.groups import ParallelConfig


@dataclass(frozen=True, kw_only=True)
class ScheduleRule:
    """Of one schedule."""

    virtual_stages: int
    """Stages a rank, where none are asked for."""
    any_number: bool = False
    """Whether a rank may have another number of stages."""
    is_v: bool = False
    """Whether rank 0 holds both ends."""


RULES = {
    "gpipe": ScheduleRule(virtual_stages=1),
    "1f1b": ScheduleRule(virtual_stages=1),
    "looped_bfs": ScheduleRule(virtual_stages=2, any_number=True),
    "interleaved_1f1b": ScheduleRule(virtual_stages=2, any_number=True),
    "interleaved_zb": ScheduleRule(virtual_stages=2, any_number=True),
    "zbv": ScheduleRule(virtual_stages=2, is_v=True),
    "dualpipev": ScheduleRule(virtual_stages=2, is_v=True),
}
LOOPED = tuple(name for name, rule in RULES.items() if rule.any_number)


def chosen_schedule(parallel: ParallelConfig) -> str:
    """The schedule's name; `auto` is 1f1b, or interleaved_1f1b where a rank is to hold several stages."""
    if parallel.schedule != "auto":
        return parallel.schedule
    return "1f1b" if parallel.virtual_stages in (None, 1) else "interleaved_1f1b"


def stages_per_rank(parallel: ParallelConfig) -> int:
    """1 where there is no pipeline."""
    if parallel.pp == 1:
        return 1
    rule = RULES[chosen_schedule(parallel)]
    return rule.virtual_stages if parallel.virtual_stages is None else parallel.virtual_stages


def check_virtual_stages(parallel: ParallelConfig) -> list[Fault]:
    """Stages a rank that the schedule does not have."""
    wanted = parallel.virtual_stages
    if wanted is None or parallel.schedule not in ("auto", *RULES):
        return []
    if parallel.pp == 1:
        if wanted == 1:
            return []
        rule = "parallel.pp=1 has no pipeline, and one stage"
        return [Fault(key="parallel.virtual_stages", value=wanted, rule=rule, way_out="leave it out, or raise pp")]
    name = chosen_schedule(parallel)
    rule_of = RULES[name]
    if rule_of.any_number or wanted == rule_of.virtual_stages:
        return []
    rule = f"the {name} schedule has {rule_of.virtual_stages} a rank"
    way_out = f"nearest: {rule_of.virtual_stages}; any number: parallel.schedule={', '.join(LOOPED)}"
    return [Fault(key="parallel.virtual_stages", value=wanted, rule=rule, way_out=way_out)]


def misfit_of_micro_batches(name: str, *, pp: int, num_micro: int) -> tuple[str, int] | None:
    """(rule, smallest number that fits and is no less) of a number of micro-batches that the schedule cannot run.

    The rules are those of torch's classes.
    """
    if name == "1f1b" and num_micro < pp:
        return "the 1f1b schedule needs one a stage", pp
    if name == "dualpipev" and num_micro < 2 * pp:
        return f"the dualpipev schedule needs one for each of its {2 * pp} stages", 2 * pp
    if name in ("interleaved_1f1b", "interleaved_zb"):
        rounds = max(1, num_micro // pp)
        if num_micro % rounds:
            more = next(count for count in range(num_micro, num_micro * 2 + pp) if count % max(1, count // pp) == 0)
            return f"the {name} schedule runs them in {rounds} rounds of equally many", more
    return None
