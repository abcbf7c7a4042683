"""What each pipeline schedule asks of the job: stages a rank, and micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

from gooseslo.errors import Fault
from gooseslo.schema.groups import ParallelConfig
from gooseslo.schema.quoting import shortened
from gooseslo.schema.schedule_file import FileSchedule, check_file_schedule, read_schedule


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


SPLIT_BACKWARD = ("interleaved_zb", "zbv", "dualpipev")
"""Weight gradients are computed after input gradients, when there would be nothing else to do."""
AUTO_ORDER = ("1f1b", "zbv", "interleaved_1f1b", "interleaved_zb", "dualpipev", "looped_bfs", "gpipe")
"""Which of the schedules that are equally good `auto` takes."""


def schedules_under_zero(stage: int) -> tuple[str, ...]:
    """Those that a pipeline may have: from stage 2 on gradients are reduced by hooks, which a split one passes by."""
    return tuple(name for name in RULES if stage < 2 or name not in SPLIT_BACKWARD)


def is_file(schedule: str) -> bool:
    """Whether `parallel.schedule` is the path of a table, not a name."""
    return schedule.lower().endswith(".csv")


def stages_per_rank(parallel: ParallelConfig) -> int:
    """1 where there is no pipeline; of `auto`, the fewest that it may choose; of what is no schedule, any number."""
    if parallel.pp <= 1:
        return 1
    if parallel.virtual_stages is not None:
        return parallel.virtual_stages
    if is_file(parallel.schedule):
        found = read_schedule(parallel.schedule)
        return found.virtual_stages if isinstance(found, FileSchedule) else 1
    if parallel.schedule == "auto":
        partition = parallel.partition
        return max(1, len(partition) // parallel.pp) if isinstance(partition, list) else 1
    return RULES[parallel.schedule].virtual_stages if parallel.schedule in RULES else 1


def candidates(
    parallel: ParallelConfig, *, num_layers: int, num_micro: int, zero_stage: int = 0, by_deepspeed: bool = False
) -> list[tuple[str, int]]:
    """(schedule, stages a rank) that `auto` may choose under these sizes, the simplest first.

    `parallel.virtual_stages`, or a list of layers per stage, says how many stages a rank has; else each schedule's own
    number is taken. `by_deepspeed`: of the simple schedules alone.
    """
    wanted = parallel.virtual_stages
    if isinstance(parallel.partition, list):
        wanted = len(parallel.partition) // parallel.pp
    found = []
    for name in AUTO_ORDER:
        rule = RULES[name]
        virtual_stages = rule.virtual_stages if wanted is None else wanted
        if (
            (rule.any_number or virtual_stages == rule.virtual_stages)
            and parallel.pp * virtual_stages <= num_layers
            and name in schedules_under_zero(zero_stage)
            and (name in ("gpipe", "1f1b") or not by_deepspeed)
            and misfit_of_micro_batches(name, pp=parallel.pp, num_micro=num_micro) is None
        ):
            found.append((name, virtual_stages))
    return found


def check_schedule_file(parallel: ParallelConfig) -> list[Fault]:
    """What is wrong with the file that `parallel.schedule` names, beside its number of micro-batches."""
    if not is_file(parallel.schedule):
        return []
    if parallel.pp == 1:
        rule, way_out = "parallel.pp=1 has no pipeline to schedule", "leave it out, or raise pp"
        return [Fault(key="parallel.schedule", value=shortened(parallel.schedule), rule=rule, way_out=way_out)]
    found = read_schedule(parallel.schedule)
    return check_file_schedule(found, parallel.pp) if isinstance(found, FileSchedule) else found


def check_virtual_stages(parallel: ParallelConfig) -> list[Fault]:
    """Stages a rank that the schedule does not have."""
    wanted, name = parallel.virtual_stages, parallel.schedule
    if wanted is None or not (name in ("auto", *RULES) or is_file(name)):
        return []
    if parallel.pp == 1:
        if wanted == 1:
            return []
        rule = "parallel.pp=1 has no pipeline, and one stage"
        return [Fault(key="parallel.virtual_stages", value=wanted, rule=rule, way_out="leave it out, or raise pp")]
    if name == "auto":
        return []
    if is_file(name):
        found = read_schedule(name)
        if not isinstance(found, FileSchedule) or wanted == found.virtual_stages:
            return []
        rule = f"{shortened(name)} has {found.virtual_stages} a rank"
        return [Fault(key="parallel.virtual_stages", value=wanted, rule=rule, way_out="leave it out")]
    rule_of = RULES[name]
    if rule_of.any_number or wanted == rule_of.virtual_stages:
        return []
    rule = f"the {name} schedule has {rule_of.virtual_stages} a rank"
    way_out = f"nearest: {rule_of.virtual_stages}; any number: parallel.schedule={', '.join(LOOPED)}"
    return [Fault(key="parallel.virtual_stages", value=wanted, rule=rule, way_out=way_out)]


def misfit_of_micro_batches(name: str, *, pp: int, num_micro: int) -> tuple[str, int] | None:
    """(rule, smallest number that fits and is no less) of a number of micro-batches that the schedule cannot run.

    The rules are those of torch's classes; a file says how many it is for.
    """
    if is_file(name):
        found = read_schedule(name)
        if isinstance(found, FileSchedule) and num_micro != found.num_micro:
            return f"{shortened(name)} is a schedule for {found.num_micro}", found.num_micro
        return None
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
