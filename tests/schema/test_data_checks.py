"""The `data` group by itself: each fault named as it was typed."""

import pytest

from gooseslo.schema.data_checks import check_data
from gooseslo.schema.data_groups import IndexedDataConfig


def faults(**values):
    return [str(fault).splitlines()[0] for fault in check_data(IndexedDataConfig(**values))]


@pytest.mark.parametrize(
    "train",
    [
        "a",
        ["a", "b"],
        [{"path": "a", "weight": 0.7}, {"path": "b", "weight": 0}],
        {"path": "a", "start": 0.1},
        [{"path": "a", "end": 1}, "b"],
    ],
)
def test_what_may_be_given(train):
    assert not faults(train=train, valid=train)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (None, "data.train: is required with data=indexed"),
        ([], "data.train=[]: names no file"),
        ([3], "data.train[0]=3: is not a path"),
        ([{"weight": 1}], "data.train[0]={weight: 1}: has no path"),
        ([{"path": "a", "wieght": 1}], "data.train[0]={path: a, wieght: 1}: has no field wieght"),
        (["a", {"path": "b", "weight": -1}], "data.train[1].weight=-1: must be at least 0"),
        ([{"path": "b", "weight": float("nan")}], "data.train[0].weight=nan: must be at least 0"),
        ([{"path": "b", "weight": "much"}], "data.train[0].weight=much: is not a number"),
        ([{"path": "b", "start": True}], "data.train[0].start=true: is not a number"),
        (
            {"path": "b", "start": 0.5, "end": 0.2},
            "data.train={start: 0.5, end: 0.2}: must be 0 <= start < end <= 1: fractions of its documents",
        ),
        (
            [{"path": "b", "end": 1.5}],
            "data.train[0]={start: 0, end: 1.5}: must be 0 <= start < end <= 1: fractions of its documents",
        ),
    ],
)
def test_what_may_not(train, words):
    assert words in faults(train=train)


def test_weights_together():
    zeros = [{"path": "a", "weight": 0}, {"path": "b", "weight": 0.0}]
    assert any("all weights are 0" in line for line in faults(train=zeros))
    assert any("1 of 2 have a weight" in line for line in faults(train=["a", {"path": "b", "weight": 1}]))
    assert any(
        line.startswith("data.valid[0].weight=-2") for line in faults(train="a", valid=[{"path": "a", "weight": -2}])
    )


def test_what_helps_is_said():
    """As Megatron writes a blend; a misspelt field; what the run had, item by item."""
    lines = "\n".join(map(str, check_data(IndexedDataConfig(train=[0.7, "a", 0.3, "b"]))))
    assert "data.train[0]=0.7: is not a path" in lines and "data.train=[{path: NAME, weight: 0.7}, ...]" in lines
    assert "nearest: weight" in str(check_data(IndexedDataConfig(train=[{"path": "a", "wieght": 1}]))[0])
