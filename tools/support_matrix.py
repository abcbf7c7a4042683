"""Writes docs/support.md: every schedule under every stage of ZeRO, run and compared with one process.

    python tools/support_matrix.py

Takes some minutes on two cores. A cell that is refused shows the rule that refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gooseslo.errors import ConfigError
from gooseslo.schema.checks import check_train
from gooseslo.schema.schedules import RULES
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case, largest_difference, run_on_ranks, run_reference

PAGE = Path(__file__).parents[1] / "docs" / "support.md"
STAGES = (0, 1, 2, 3)
LAYERS = {"gpt2": "n_layer", "llama": "num_hidden_layers"}
LAYOUTS = {"pp=2, dp=2": {"pp": 2, "dp": 2}, "tp=2, pp=2": {"tp": 2, "pp": 2}, "tp=2, dp=2": {"tp": 2, "dp": 2}}
HEAD = """# What runs with what

<!-- Written by tools/support_matrix.py; do not edit. -->

Each cell was run in fp64 for three steps of AdamW, with four micro-batches or more and clipping that bites, and
compared with one process of plain transformers: the largest relative difference of a loss, a gradient or an updated
weight is shown, of GPT-2 (tied embeddings) and Llama (untied). A cell that is refused says why, before anything starts.
"""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One schedule under one stage."""

    schedule: str
    stage: int
    sizes: dict[str, int]

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
            optimizer="adamw",
            clip_grad_norm=0.1,
            zero_stage=self.stage,
            **self.sizes,
        )

    def refusal(self) -> str | None:
        """The rule that the configuration breaks."""
        faults = check_train(self.case("gpt2").job(), num_devices=0)
        return faults[0].rule if faults else None


def shown(cell: Cell) -> str:
    """What the cell says."""
    if cell.refusal() is not None:
        return "refused"
    found = []
    for family in LAYERS:
        case = cell.case(family)
        found.append(largest_difference(run_reference(case), run_on_ranks(case)))
    return ", ".join(f"{difference:.0e}" for difference in found)


def main() -> None:
    lines, refusals = [HEAD], {}
    for layout, sizes in LAYOUTS.items():
        lines += [f"## {layout}", "", "| schedule | " + " | ".join(f"stage {stage}" for stage in STAGES) + " |"]
        lines += ["|---" * (len(STAGES) + 1) + "|"]
        for schedule in RULES if sizes.get("pp", 1) > 1 else ("1f1b",):
            cells = [Cell(schedule=schedule, stage=stage, sizes=sizes) for stage in STAGES]
            refusals |= {rule: None for cell in cells if (rule := cell.refusal())}
            name = f"`{schedule}`" if sizes.get("pp", 1) > 1 else "no pipeline"
            lines.append(f"| {name} | " + " | ".join(map(shown, cells)) + " |")
        lines.append("")
    lines += ["## What is refused", "", *(f"- {rule}" for rule in refusals), ""]
    PAGE.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        raise SystemExit(str(error)) from None
