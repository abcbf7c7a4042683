"""A pipeline schedule in a CSV file, one line a rank: read and checked as torch would run it, without a process.

The format is that of torch's own tables, of what is computed alone: `0F0,0F1,0B0,0B1`; empty cells are idle steps.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from gooseslo.errors import Fault
from gooseslo.schema.quoting import shortened
from gooseslo.schema.schedule_table import Action, Table, rank_of_stage, simulate

KEY = "parallel.schedule"
_ACTION = re.compile(r"(\d{1,6})([FBIW])(\d{1,6})")
_MESSAGE = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)\d*")
_FORM = "a cell is STAGE F|B|I|W MICRO-BATCH, such as 0F0"
_MAX_FAULTS = 5


@dataclass(frozen=True, kw_only=True)
class FileSchedule:
    """A table whose every cell could be read."""

    path: str
    table: Table
    """Without the idle steps."""

    @property
    def actions(self) -> list[Action]:
        return [action for row in self.table for action in row]

    @property
    def num_stages(self) -> int:
        return 1 + max(action.stage for action in self.actions)

    @property
    def num_micro(self) -> int:
        return 1 + max(action.micro_batch for action in self.actions)

    @property
    def virtual_stages(self) -> int:
        return max(1, self.num_stages // len(self.table))

    @property
    def is_v(self) -> bool:
        """Whether the stages go down the ranks and up again."""
        return self.virtual_stages == 2 and self.ranks() == _dealt(len(self.table), 2, is_v=True)

    def ranks(self) -> dict[int, int]:
        """Stage -> the first rank that computes it."""
        found: dict[int, int] = {}
        for rank, row in enumerate(self.table):
            for action in row:
                found.setdefault(action.stage, rank)
        return found


def read_schedule(path: str) -> FileSchedule | list[Fault]:
    """The file's table, or what in it cannot be read."""

    def fault(rule: str, way_out: str = "") -> Fault:
        return Fault(key=KEY, value=shortened(path), rule=rule, way_out=way_out)

    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            lines = [list(line) for line in csv.reader(file)]
    except OSError as error:
        return [fault(f"cannot be read: {error.strerror}", "or a schedule's name, such as parallel.schedule=auto")]
    except (UnicodeDecodeError, csv.Error) as error:
        return [fault(f"is no CSV text: {error}", _FORM)]
    while lines and not any(cell.strip() for cell in lines[-1]):
        lines.pop()
    if not lines:
        return [fault("is empty", f"one line a rank; {_FORM}")]
    rows, faults = [], []
    for number, line in enumerate(lines, 1):
        row: list[Action] = []
        for column, cell in enumerate(line, 1):
            read = _read_cell(cell.strip())
            if isinstance(read, str):
                shown = shortened(cell.strip(), 30)
                faults.append(fault(f"line {number}, column {column}: {shown} {read}", _FORM))
            else:
                row += read
        rows.append(tuple(row))
    if not faults and not any(rows):
        faults.append(fault("is empty", f"one line a rank; {_FORM}"))
    if len(faults) > _MAX_FAULTS:
        faults = [*faults[: _MAX_FAULTS - 1], fault(f"and {len(faults) - _MAX_FAULTS + 1} more cells", _FORM)]
    return faults or FileSchedule(path=path, table=tuple(rows))


def _read_cell(cell: str) -> list[Action] | str:
    """The actions of a cell (two where torch overlaps a forward with a backward pass), or what is wrong with it."""
    overlapped = re.fullmatch(r"\(([^()]*)\)OVERLAP_F_B", cell)
    parts = overlapped[1].split(";") if overlapped else [cell] if cell else []
    found = []
    for part in parts:
        match = _ACTION.fullmatch(part.strip())
        if match is None:
            is_message = _MESSAGE.fullmatch(part.strip())
            return "is no computation: torch adds messages itself" if is_message else "is no action"
        found.append(Action(int(match[1]), match[2], int(match[3])))
    return found


def check_file_schedule(schedule: FileSchedule, pp: int) -> list[Fault]:
    """What torch could not run on `pp` ranks: stages on other ranks, missing work, an order that never ends."""

    def fault(rule: str, way_out: str = "") -> list[Fault]:
        return [Fault(key=KEY, value=shortened(schedule.path), rule=rule, way_out=way_out)]

    table, num_stages = schedule.table, schedule.num_stages
    if len(table) != pp:
        rule = f"has {len(table)} lines, one a rank, but parallel.pp={pp}"
        return fault(rule, f"nearest: parallel.pp={len(table)}" if len(table) > 1 else "")
    ranks = schedule.ranks()
    for rank, row in enumerate(table):
        for action in row:
            if ranks[action.stage] != rank:
                rule = f"stage {action.stage} is on lines {ranks[action.stage] + 1} and {rank + 1}"
                return fault(rule, "a stage lies on one rank")
    if misplaced := _misplaced(schedule):
        return fault(*misplaced)
    if missing := _missing_work(schedule):
        return fault(missing, "each micro-batch has F and B on every stage once, or F, I and W")
    if stuck := simulate(table, num_stages=num_stages).stuck:
        waits = [f"line {rank + 1} waits at {action} for {needed}" for rank, action, needed in stuck]
        more = f", and {len(waits) - 3} more lines wait" if len(waits) > 3 else ""
        return fault(f"never ends: {', '.join(waits[:3])}{more}", "change the order of these actions")
    return []


def _misplaced(schedule: FileSchedule) -> tuple[str, str] | None:
    """(rule, way out) of stages that are dealt to the ranks neither in turn nor down and up again."""
    pp, ranks = len(schedule.table), schedule.ranks()
    absent = [stage for stage in range(schedule.num_stages) if stage not in ranks]
    if absent or schedule.num_stages % pp:
        rule = f"has {len(ranks)} stages, numbered up to {schedule.num_stages - 1}"
        return rule, f"{pp} ranks have {pp} stages, or a multiple, numbered from 0 without a gap"
    ways = [_dealt(pp, schedule.virtual_stages, is_v=False)]
    ways += [_dealt(pp, 2, is_v=True)] if schedule.virtual_stages == 2 else []
    if ranks in ways:
        return None
    nearest = max(ways, key=lambda way: sum(way[stage] == rank for stage, rank in ranks.items()))
    stage = next(stage for stage in sorted(ranks) if ranks[stage] != nearest[stage])
    shape = "in a loop" if nearest is ways[0] else "in a V"
    rule = f"stage {stage} is on line {ranks[stage] + 1}: the stages lie neither in a loop nor in a V"
    return rule, f"nearest: {shape}, stage {stage} on line {nearest[stage] + 1}"


def _dealt(pp: int, virtual_stages: int, *, is_v: bool) -> dict[int, int]:
    """Stage -> rank."""
    return {stage: rank_of_stage(stage, pp=pp, is_v=is_v) for stage in range(pp * virtual_stages)}


def _missing_work(schedule: FileSchedule) -> str | None:
    """The first stage and micro-batch that is not computed once, forward and backward."""
    counts, num_micro = Counter(schedule.actions), schedule.num_micro
    for stage in range(schedule.num_stages):
        for micro in range(num_micro):
            found = {kind: counts[Action(stage, kind, micro)] for kind in "FBIW"}
            if found["F"] == 1 and (found["B"], found["I"], found["W"]) in ((1, 0, 0), (0, 1, 1)):
                continue
            words = [kind if count == 1 else f"{kind} {count} times" for kind, count in found.items() if count]
            has = ", ".join(words) if words else "nothing"
            return f"micro-batch {micro} on stage {stage} has {has}"
    return None
