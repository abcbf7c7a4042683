"""docs/support.md says what is refused as the configuration does, and what runs is as near one process as we claim."""

import importlib.util
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
def page(tool):
    """By section: (name of a row, what each stage's cell says)."""
    found = {}
    for section, text in tool.written().items():
        lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
        found[section] = [(name.strip(), [cell.strip() for cell in cells]) for name, *cells in lines[1:]]
    return found


def test_every_row_is_there(tool, page):
    assert list(page) == [*tool.SECTIONS, "What is refused"]
    for section in tool.SECTIONS:
        assert [name for name, _ in page[section]] == [row.name for row in tool.rows(section)]


def test_refused_is_what_the_configuration_refuses(tool, page):
    for section in tool.SECTIONS:
        for row, (name, said) in zip(tool.rows(section), page[section], strict=True):
            expected = [cell.fault() is not None for cell in row.cells]
            assert [cell == "refused" for cell in said] == expected, (section, name)


def test_what_runs_is_near_one_process(tool, page):
    for section in tool.SECTIONS:
        near = 1e-5 if section == tool.BY_DEEPSPEED else 1e-9
        numbers = [cell for _, said in page[section] for cell in said if cell != "refused"]
        assert len(numbers) >= 4
        assert all(float(number) < near for cell in numbers for number in cell.split(", ")), section


def test_the_stages_that_must_run_do(tool):
    """Stages 0 and 1 under all schedules; 2 and 3 under those that do not split the backward pass."""
    whole = ("gpipe", "1f1b", "looped_bfs", "interleaved_1f1b")
    cells = [cell for section in tool.LAYOUTS for row in tool.rows(section) for cell in row.cells]
    assert all(cell.stage >= 2 and cell.schedule not in whole for cell in cells if cell.fault())


def test_what_must_run_by_deepspeed_does(tool):
    """Stage 1 everywhere, stages 0 and 2 too without a pipeline."""
    cells = [cell for row in tool.rows(tool.BY_DEEPSPEED) for cell in row.cells]
    refused = [cell for cell in cells if cell.fault()]
    assert refused and not [cell for cell in refused if cell.stage == 1]
    assert not [cell for cell in refused if cell.stage < 3 and "pp" not in cell.sizes]


def test_each_rule_is_told_once_with_its_way_out(tool):
    """Of every cell that is refused: its schedule or stage, and how to run it, in one line of the page."""
    lines = tool.written()["What is refused"].splitlines()
    assert lines == tool.refusals(), 'run python tools/support_matrix.py "By DeepSpeed"'
    assert len(lines) <= 4
    for section in tool.SECTIONS:
        for cell in (cell for row in tool.rows(section) for cell in row.cells if cell.fault()):
            told = [line for line in lines if f"({cell.fault().way_out})" in line and str(cell.stage) in line]
            assert len(told) == 1 and (cell.backend == "deepspeed" or cell.schedule in told[0]), cell


@pytest.mark.parametrize(("backend", "near"), [("torch", 1e-9), ("deepspeed", 1e-5)])
def test_a_cell_is_measured(tool, backend, near):
    said = tool.shown(tool.Cell(schedule="1f1b", stage=1, sizes={"dp": 2}, backend=backend))
    assert all(0 < float(number) < near for number in said.split(", ")), said


def test_a_section_that_is_not_there(tool):
    with pytest.raises(SystemExit, match=r"no such section: pp=9; there are: .*By DeepSpeed"):
        tool.main(["pp=9"])
