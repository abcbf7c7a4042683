"""Writes docs/support.md: every schedule under every stage of ZeRO, run and compared with one process.

    python tools/support_matrix.py                  # every section: many minutes on two cores
    python tools/support_matrix.py "By DeepSpeed"   # this section alone; the others stay as they are

What is refused, and why, is asked of the configuration.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from gooseslo.errors import ConfigError, Fault
from gooseslo.schema.checks import check_train
from gooseslo.schema.schedules import RULES
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case, largest_difference, run_on_ranks, run_reference

PAGE = Path(__file__).parents[1] / "docs" / "support.md"
STAGES = (0, 1, 2, 3)
BY_DEEPSPEED = "By DeepSpeed"
LAYERS = {"gpt2": "n_layer", "llama": "num_hidden_layers"}
LAYOUTS = {"pp=2, dp=2": {"pp": 2, "dp": 2}, "tp=2, pp=2": {"tp": 2, "pp": 2}, "tp=2, dp=2": {"tp": 2, "dp": 2}}
HEAD = """# What runs with what

<!-- Written by tools/support_matrix.py; do not edit. -->

Each cell was run in fp64 for three steps of AdamW, with four micro-batches or more and clipping that bites, and
compared with one process of plain transformers: the largest relative difference of a loss, a gradient or an updated
weight is shown, of GPT-2 (tied embeddings) and Llama (untied). A cell that is refused says why, before anything starts.
"""
ABOUT_DEEPSPEED = """`zero.backend=deepspeed` has weights in fp32 alone. So these cells were run in fp32, for three
steps of SGD; they are compared at 1e-5. The rest is as above.
"""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One schedule under one stage."""

    schedule: str
    stage: int
    sizes: dict[str, int]
    backend: str = "torch"

    def case(self, family: str) -> Case:
        pipelined = self.sizes.get("pp", 1) > 1
        layers = RULES[self.schedule].virtual_stages * self.sizes["pp"] if pipelined else 2
        return Case(
            architecture=family,
            fields=tiny_fields(family, **{LAYERS[family]: layers}),
            schedule=self.schedule,
            samples=4 * self.sizes.get("dp", 1),
            micro_batch_size=1,
            sequence_length=12,
            precision="fp64" if self.backend == "torch" else "fp32",
            optimizer="adamw" if self.backend == "torch" else "sgd",
            clip_grad_norm=0.1,
            zero_stage=self.stage,
            zero_backend=self.backend,
            **self.sizes,
        )

    def fault(self) -> Fault | None:
        """What the configuration refuses the cell for."""
        faults = check_train(self.case("gpt2").job(), num_devices=0)
        return faults[0] if faults else None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of a section's table: its cells, one for each stage."""

    name: str
    cells: tuple[Cell, ...]


def rows(section: str) -> list[Row]:
    if section != BY_DEEPSPEED:
        sizes = LAYOUTS[section]
        if sizes.get("pp", 1) == 1:
            return [_row("no pipeline", "1f1b", sizes)]
        return [_row(f"`{schedule}`", schedule, sizes) for schedule in RULES]
    plain = [{"dp": 2}, {"tp": 2, "dp": 2}]
    found = [_row(_layout(sizes), "1f1b", sizes, "deepspeed") for sizes in plain]
    sizes = {"pp": 2, "dp": 2}
    return found + [_row(f"{_layout(sizes)}, `{name}`", name, sizes, "deepspeed") for name in ("gpipe", "1f1b")]


def _row(name: str, schedule: str, sizes: dict[str, int], backend: str = "torch") -> Row:
    cells = (Cell(schedule=schedule, stage=stage, sizes=sizes, backend=backend) for stage in STAGES)
    return Row(name=name, cells=tuple(cells))


def _layout(sizes: dict[str, int]) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in sizes.items())


SECTIONS = (*LAYOUTS, BY_DEEPSPEED)


def shown(cell: Cell) -> str:
    """What the cell says."""
    if cell.fault() is not None:
        return "refused"
    found = []
    for family in LAYERS:
        case = cell.case(family)
        found.append(largest_difference(run_reference(case), run_on_ranks(case)))
    return ", ".join(f"{difference:.0e}" for difference in found)


def refusals() -> list[str]:
    """Each rule once, with all schedules and stages that it is about, and its way out."""
    about: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for cell in (cell for section in SECTIONS for row in rows(section) for cell in row.cells):
        if (fault := cell.fault()) is None:
            continue
        rule = re.sub(rf"\b{cell.schedule}\b", "SCHEDULES", fault.rule)
        rule = re.sub(rf"\bzero\.stage={cell.stage}\b", "zero.stage=STAGES", rule)
        if fault.key == "zero.stage":
            rule = f"zero.stage=STAGES: {rule}"
        schedules, stages = about.setdefault(f"{rule} ({fault.way_out})", ({}, {}))
        schedules[cell.schedule] = stages[str(cell.stage)] = None
    return [
        "- " + rule.replace("SCHEDULES", _either(schedules)).replace("STAGES", _either(stages))
        for rule, (schedules, stages) in about.items()
    ]


def _either(words: dict[str, None]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def measured(section: str) -> str:
    """The section's text, its cells run now."""
    first = "layout" if section == BY_DEEPSPEED else "schedule"
    lines = [ABOUT_DEEPSPEED] if section == BY_DEEPSPEED else []
    lines += [f"| {first} | " + " | ".join(f"stage {stage}" for stage in STAGES) + " |"]
    lines += ["|---" * (len(STAGES) + 1) + "|"]
    lines += [f"| {row.name} | " + " | ".join(map(shown, row.cells)) + " |" for row in rows(section)]
    return "\n".join(lines)


def written() -> dict[str, str]:
    """The page's sections by heading, as they are."""
    parts = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    return {title: text.strip() for title, _, text in (part.partition("\n") for part in parts)}


def main(wanted: list[str]) -> None:
    if unknown := set(wanted) - set(SECTIONS):
        raise SystemExit(f"no such section: {', '.join(sorted(unknown))}; there are: {'; '.join(SECTIONS)}")
    kept = written() if wanted else {}
    lines = [HEAD]
    for section in SECTIONS:
        text = kept[section] if wanted and section not in wanted else measured(section)
        lines += [f"## {section}", "", text, ""]
    lines += ["## What is refused", "", *refusals(), ""]
    PAGE.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ConfigError as error:
        raise SystemExit(str(error)) from None
