"""Schedules from CSV files, `auto`, and every partition against one process of plain transformers."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from documented import Script, steps

from gooseslo.engine.plan import make_plan
from gooseslo.parallel.pipeline.placement import StagePlacement
from gooseslo.parallel.pipeline.tables import table_of
from gooseslo.schema.schedule_file import check_file_schedule, read_schedule
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case, assert_parity, run_layout, run_reference
from gooseslo.testing.ranks import run_ranks

PAGE = Path(__file__).parents[2] / "docs" / "add-a-schedule.md"
ONE_F_ONE_B, ZBV = re.findall(r"```csv\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
MIXED = "0F0,0F1,0F2,0F3,0I0,0W0,0B1,0I2,0B3,0W2\n1F0,1F1,1I1,1B0,1F2,1F3,1W1,1B2,1B3\n"
"""Neither first in, first out, nor one kind of backward pass."""


def on_ranks(rank, world_size, case, folder):
    sys.path.insert(0, folder)
    return run_layout(case, rank)


def check(case, folder=""):
    expected = run_reference(case)
    actual = run_ranks(on_ranks, case.world_size, case, str(folder))[0]
    assert_parity(expected, actual, loss=1e-12, tensors=1e-9)


def case_of(family="gpt2", *, schedule="1f1b", **changes):
    options = {"pp": 2, "samples": 4, "micro_batch_size": 1, "sequence_length": 12, **changes}
    fields = tiny_fields(family, **options.pop("fields", {}))
    return Case(architecture=family, fields=fields, schedule=str(schedule), **options)


def test_the_tables_of_the_page_are_torchs():
    placements = {"1f1b": StagePlacement(pp=2), "zbv": StagePlacement(pp=2, virtual_stages=2, is_v=True)}
    for text, (name, placement) in zip((ONE_F_ONE_B, ZBV), placements.items(), strict=True):
        table = table_of(name, placement, num_micro=4)
        assert text.splitlines() == [",".join(map(str, row)) for row in table]


def test_the_script_of_the_page_writes_a_schedule(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (script,) = (step for step in steps("docs/add-a-schedule.md") if isinstance(step, Script))
    exec(script.source, {})
    (name,) = (path.name for path in tmp_path.iterdir())
    assert check_file_schedule(read_schedule(name), 4) == []


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("text", [ONE_F_ONE_B, ZBV, MIXED], ids=["1f1b", "zbv", "mixed"])
def test_a_csv_file(tmp_path, text, family):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    check(case_of(family, schedule=path))


def test_a_csv_file_under_tensor_parallelism(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(ZBV)
    check(case_of(schedule=path, tp=2, activation_checkpointing="full"))


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [({}, "zbv"), ({"samples": 1}, "interleaved_zb"), ({"fields": {"n_layer": 3}}, "1f1b")],
)
def test_auto(changes, chosen):
    given = case_of(schedule="auto", **changes)
    assert make_plan(given.job(), num_devices=0).schedule == chosen
    check(given)


FUNCTION = """
def front(*, num_layers, num_stages, **given):
    return [num_layers - num_stages + 1, *[1] * (num_stages - 1)]
"""


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
@pytest.mark.parametrize("partition", ["memory", "time", "my_partition:front"])
def test_a_partition(tmp_path, monkeypatch, partition, schedule):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_partition.py").write_text(FUNCTION)
    given = case_of(schedule=schedule, partition=partition, fields={"n_layer": 6})
    counts = make_plan(given.job(), num_devices=0).layers_per_stage
    assert sum(counts) == 6
    if partition == "time":  # a run measures once, in its parent
        given = replace(given, partition=counts)
    check(given, tmp_path)
