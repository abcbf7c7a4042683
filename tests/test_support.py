"""docs/support.md says what is refused as the configuration does, and what runs is as near one process as we claim."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("support_matrix", ROOT / "tools" / "support_matrix.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["support_matrix"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows():
    """(layout, schedule, what each stage's cell says)."""
    found, layout = [], ""
    for line in (ROOT / "docs" / "support.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            layout = line[3:]
        elif row := re.match(r"\| (?:`(\w+)`|no pipeline) \|(.*)\|", line):
            found.append((layout, row[1] or "1f1b", [cell.strip() for cell in row[2].split("|")]))
    return found


def test_every_schedule_has_a_row(tool, rows):
    for layout, sizes in tool.LAYOUTS.items():
        expected = list(tool.RULES) if sizes.get("pp", 1) > 1 else ["1f1b"]
        assert [schedule for place, schedule, _ in rows if place == layout] == expected


def test_refused_is_what_the_configuration_refuses(tool, rows):
    for layout, schedule, cells in rows:
        for stage, said in zip(tool.STAGES, cells, strict=True):
            cell = tool.Cell(schedule=schedule, stage=stage, sizes=tool.LAYOUTS[layout])
            assert (said == "refused") == (cell.refusal() is not None), (layout, schedule, stage)


def test_what_runs_is_near_one_process(rows):
    shown = [cell for _, _, cells in rows for cell in cells if cell != "refused"]
    assert len(shown) > 40
    assert all(float(number) < 1e-9 for cell in shown for number in cell.split(", "))


def test_the_stages_that_must_run_do(rows):
    """Stages 0 and 1 under all schedules; 2 and 3 under those that do not split the backward pass."""
    whole = ("gpipe", "1f1b", "looped_bfs", "interleaved_1f1b")
    refused = {
        (schedule, stage) for _, schedule, cells in rows for stage, said in enumerate(cells) if said == "refused"
    }
    assert all(stage >= 2 and schedule not in whole for schedule, stage in refused)


def test_a_cell_is_measured(tool):
    said = tool.shown(tool.Cell(schedule="1f1b", stage=1, sizes={"dp": 2}))
    assert re.fullmatch(r"\d+e-1\d, \d+e-1\d", said)
