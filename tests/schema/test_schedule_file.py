"""A schedule in a CSV file: what is read, and what is refused before anything starts."""

import pytest

from gooseslo.errors import ConfigError
from gooseslo.schema.compose import compose_train
from gooseslo.schema.schedule_file import FileSchedule, check_file_schedule, read_schedule
from gooseslo.schema.schedule_table import Action, held, simulate
from gooseslo.schema.schedules import candidates

ONE_F_ONE_B = "0F0,0F1,0B0,,0B1\n,1F0,1B0,1F1,1B1\n"
V = "0F0,3F0,3I0,3W0,0I0,0W0\n1F0,2F0,2I0,1B0,2W0\n"
LOOP = "0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n"


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "mine.csv").write_text(text, encoding="utf-8", newline="")
        return "mine.csv"

    return write


def test_what_is_read(file):
    read = read_schedule(file(ONE_F_ONE_B + "\n"))
    assert isinstance(read, FileSchedule) and (read.num_stages, read.num_micro, read.virtual_stages) == (2, 2, 1)
    assert [str(action) for action in read.table[1]] == ["1F0", "1B0", "1F1", "1B1"]
    assert (read_schedule(file(V)).is_v, read_schedule(file(LOOP)).is_v) == (True, False)


def test_what_a_spreadsheet_saves(file):
    read = read_schedule(file("\ufeff" + ONE_F_ONE_B.replace("\n", "\r\n")))
    assert isinstance(read, FileSchedule) and str(read.table[0][0]) == "0F0"


def test_what_torch_overlaps_is_one_after_the_other(file):
    read = read_schedule(file("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n"))
    assert [str(action) for action in read.table[0]] == ["0F0", "0F1", "0B0", "0B1"]
    assert check_file_schedule(read, 2) == []


@pytest.mark.parametrize("text", [ONE_F_ONE_B, V, LOOP])
def test_what_runs_is_taken(file, text):
    job = compose_train([f"parallel.schedule={file(text)}", "parallel.pp=2", *batch(text)])
    assert job.parallel.schedule == "mine.csv"


def batch(text):
    return ["train.micro_batch_size=1", f"train.global_batch_size={2 if 'F1' in text else 1}"]


WRONG = {
    "empty": ("\n", "is empty\n  one line a rank"),
    "no action": ("0F0,0X0,0B0\n1F0,1B0\n", "line 1, column 2: 0X0 is no action\n  a cell is STAGE F|B|I|W"),
    "a message": ("0F0,0SEND_F0,0B0\n1F0,1B0\n", "column 2: 0SEND_F0 is no computation: torch adds messages itself"),
    "rows": ("0F0,0B0\n", "has 1 lines, one a rank, but parallel.pp=2"),
    "more rows": (
        "0F0,0B0\n1F0,1B0\n2F0,2B0\n",
        "has 3 lines, one a rank, but parallel.pp=2\n  nearest: parallel.pp=3",
    ),
    "two ranks": ("0F0,0B0\n1F0,0B0\n", "stage 0 is on lines 1 and 2\n  a stage lies on one rank"),
    "a gap": ("0F0,0B0\n2F0,2B0\n", "has 2 stages, numbered up to 2\n  2 ranks have 2 stages, or a multiple"),
    "odd": ("0F0,2F0,2B0,0B0\n1F0,1B0\n", "has 3 stages, numbered up to 2"),
    "swapped": ("1F0,1B0\n0F0,0B0\n", "stage 0 is on line 2: the stages lie neither in a loop nor in a V"),
    "nearly a V": (
        "0F0,1F0,1B0,0B0\n2F0,3F0,3B0,2B0\n",
        "stage 1 is on line 1: the stages lie neither in a loop nor in a V\n  nearest: in a loop, stage 1 on line 2",
    ),
    "no backward": ("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n", "micro-batch 1 on stage 0 has F\n"),
    "twice": ("0F0,0B0,0B0\n1F0,1B0\n", "micro-batch 0 on stage 0 has F, B 2 times\n"),
    "half": ("0F0,0I0\n1F0,1B0\n", "micro-batch 0 on stage 0 has F, I\n"),
    "B and W": ("0F0,0B0,0W0\n1F0,1B0\n", "micro-batch 0 on stage 0 has F, B, W\n"),
    "a hole": ("0F0,0F2,0B0,0B2\n1F0,1B0,1F2,1B2\n", "micro-batch 1 on stage 0 has nothing"),
    "too early": ("0B0,0F0\n1F0,1B0\n", "never ends: line 1 waits at 0B0 for 0F0, line 2 waits at 1F0 for 0F0"),
    "crossed": (
        "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n",
        "never ends: line 1 waits at 0B0 for 1B0, line 2 waits at 1F1 for 0F1\n  change the order",
    ),
    "weights first": ("0F0,0W0,0I0\n1F0,1B0\n", "never ends: line 1 waits at 0W0 for 0I0"),
}


@pytest.mark.parametrize("text, words", WRONG.values(), ids=WRONG.keys())
def test_what_cannot_run_is_refused(file, text, words):
    with pytest.raises(ConfigError) as caught:
        compose_train([f"parallel.schedule={file(text)}", "parallel.pp=2", "device=cpu", *batch("")])
    (fault,) = caught.value.faults
    assert str(fault).startswith("parallel.schedule=mine.csv: ") and words in str(fault)


def faults_of(*overrides):
    with pytest.raises(ConfigError) as caught:
        compose_train(["device=cpu", *overrides])
    return [str(fault) for fault in caught.value.faults]


def test_every_wrong_cell_is_named_up_to_five(file):
    path = file("x,y\n" * 4)
    faults = faults_of(f"parallel.schedule={path}", "parallel.pp=2")
    assert len(faults) == 5 and "line 1, column 2: y is no action" in faults[1] and "and 4 more cells" in faults[4]


def test_what_does_not_fit_the_job_is_refused(file):
    given = [f"parallel.schedule={file(V)}", *batch(V)]
    (fault,) = faults_of(*given, "parallel.pp=2", "parallel.virtual_stages=1")
    assert "parallel.virtual_stages=1: mine.csv has 2 a rank" in fault
    (fault,) = faults_of(*given)
    assert "mine.csv: parallel.pp=1 has no pipeline to schedule" in fault
    (fault,) = faults_of(*given, "parallel.pp=2", "parallel.partition=[3,3]")
    assert "names 2 stages, but parallel.pp=2 with 2 stages a rank" in fault
    (fault,) = faults_of(*given[:1], "parallel.pp=2", "train.global_batch_size=4", "train.micro_batch_size=1")
    assert "4 micro-batches with parallel.pp=2: mine.csv is a schedule for 1" in fault
    assert "train.micro_batch_size=4, or train.global_batch_size=1, or parallel.schedule=auto" in fault


@pytest.mark.parametrize(("name", "words"), [("none.csv", "No such file"), ("folder.csv", "Is a directory")])
def test_what_cannot_be_read_is_refused(file, tmp_path, name, words):
    (tmp_path / "folder.csv").mkdir()
    (fault,) = faults_of(f"parallel.schedule={name}", "parallel.pp=2")
    assert fault.startswith(f"parallel.schedule={name}: cannot be read: {words}")


def test_bytes_that_are_no_text_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_bytes(b"0F0,\xff\n")
    (fault,) = faults_of("parallel.schedule=mine.csv", "parallel.pp=2")
    assert "is no CSV text" in fault


def test_the_simulation_waits_for_what_an_action_needs(file):
    """By hand: rank 0 computes 0-1, 1-2, waits to 4 for 1B0, 4-6, waits to 7, 7-9; 12 units of work in 18."""
    simulation = simulate(read_schedule(file(ONE_F_ONE_B)).table, num_stages=2)
    assert simulation.time == 9 and simulation.idle == pytest.approx(1 / 3)
    assert simulation.stuck == ()
    split = simulate(read_schedule(file("0F0,0I0,0W0\n1F0,1I0,1W0\n")).table, num_stages=2)
    assert split.time == 5  # 1I0 ends at 3, and rank 0 does not wait for 1W0


def test_a_micro_batch_is_held_until_its_weights_are_done():
    row = [Action(0, "F", 0), Action(0, "F", 1), Action(0, "I", 0), Action(0, "F", 2), Action(0, "W", 0)]
    assert held(row) == {((0, 3),)}
    assert held([*row[:3], Action(0, "W", 0), Action(0, "F", 2)]) == {((0, 2),)}
    both = [Action(0, "F", 0), Action(0, "F", 1), Action(0, "B", 0), Action(0, "B", 1), Action(3, "F", 0)]
    assert held(both) == {((0, 2), (3, 0)), ((0, 0), (3, 1))}


@pytest.mark.parametrize(
    ("keys", "sizes", "expected"),
    [
        (
            {},
            {},
            {
                "1f1b": 1,
                "zbv": 2,
                "interleaved_1f1b": 2,
                "interleaved_zb": 2,
                "dualpipev": 2,
                "looped_bfs": 2,
                "gpipe": 1,
            },
        ),
        ({}, {"num_micro": 1}, {"zbv": 2, "interleaved_1f1b": 2, "interleaved_zb": 2, "looped_bfs": 2, "gpipe": 1}),
        ({}, {"num_layers": 3}, {"1f1b": 1, "gpipe": 1}),
        ({}, {"zero_stage": 2}, {"1f1b": 1, "interleaved_1f1b": 2, "looped_bfs": 2, "gpipe": 1}),
        ({}, {"zero_stage": 3, "num_micro": 1}, {"interleaved_1f1b": 2, "looped_bfs": 2, "gpipe": 1}),
        (
            {"virtual_stages": 1},
            {},
            {"1f1b": 1, "interleaved_1f1b": 1, "interleaved_zb": 1, "looped_bfs": 1, "gpipe": 1},
        ),
        ({"virtual_stages": 3}, {}, {"interleaved_1f1b": 3, "interleaved_zb": 3, "looped_bfs": 3}),
        (
            {"partition": [2, 2, 2, 2]},
            {},
            {"zbv": 2, "interleaved_1f1b": 2, "interleaved_zb": 2, "dualpipev": 2, "looped_bfs": 2},
        ),
        ({"partition": [4, 4]}, {"zero_stage": 2}, {"1f1b": 1, "interleaved_1f1b": 1, "looped_bfs": 1, "gpipe": 1}),
    ],
)
def test_auto_takes_only_what_is_legal(keys, sizes, expected):
    typed = [f"parallel.{key}={value}" for key, value in keys.items()]
    parallel = compose_train(["parallel.pp=2", "device=cpu", *typed]).parallel
    found = candidates(parallel, **{"num_layers": 8, "num_micro": 4, **sizes})
    assert dict(found) == expected
