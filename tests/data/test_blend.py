"""Blending: at every prefix each set's share to within one sample, for any weights and any number of sets."""

import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gooseslo.data import DatasetBlender
from gooseslo.data.order import turns
from gooseslo.data.order.order import evaluation_order, num_distinct, training_order
from gooseslo.data.order.sample import Sample
from gooseslo.data.order.turns import Turns
from gooseslo.errors import DataError


class Numbered:
    """Samples whose first token is the set's name, and whose second is the sample's number."""

    sequence_length = 2

    def __init__(self, name, size):
        self.name, self.num_samples = name, size

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.name, index

    def sample(self, number):
        return Sample(np.array([self.name, number]), np.array([number, number]))


def largest_error(weights, count):
    """Of any set at any prefix; asserts that each set's own positions are 0, 1, 2 ..."""
    sets, positions = Turns(weights).locate(0, count)
    total, worst = sum(Fraction(str(weight)) for weight in weights), 0.0
    for index, weight in enumerate(weights):
        mine = sets == index
        assert np.array_equal(positions[mine], np.arange(mine.sum()))
        share = float(Fraction(str(weight)) / total)
        counts = np.concatenate([[0], np.cumsum(mine)])
        worst = max(worst, np.abs(counts - share * np.arange(count + 1)).max())
    return worst


def drawn(datasets, weights, count):
    blender = DatasetBlender(datasets, weights)
    sets, positions = blender.turns.locate(0, count)
    return np.bincount(sets, minlength=len(datasets)).tolist(), sets, positions


def test_a_very_small_weight_does_not_run_past_the_end_of_a_small_set():
    sets = [Numbered(0, 3), Numbered(1, 1000)]
    assert drawn(sets, [0.999, 0.001], 10)[0] == [9, 1]
    assert drawn(sets, [0.001, 0.999], 1000)[0] == [1, 999]
    blender = DatasetBlender(sets, [0.999, 0.001])
    small = [blender[n][1] for n in range(10) if blender[n][0] == 0]
    assert small == [n % 3 for n in range(len(small))]


weights_of = st.one_of(
    st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=8),
    st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any),
    st.lists(st.sampled_from([1e-3, 0.01, 0.3, 1, 50]), min_size=1, max_size=20),
)


@settings(deadline=None, max_examples=100)
@given(weights=weights_of, count=st.integers(1, 2000), chunk=st.sampled_from([5, 64, 1024]))
@example(weights=[632, 483, 87, 63], count=100, chunk=1024)  # the quicker rules alone are off by 1.07
@example(weights=[1e-17, 1.0], count=100, chunk=64)
def test_every_prefix_is_within_one_of_every_share(weights, count, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "_CHUNK", chunk)
        assert largest_error(weights, count) < 1 + 1e-9


def test_the_exact_rule_alone_and_the_quick_ones_alone(monkeypatch):
    """What is checked is worth checking: without it the quick rules break the bound, by deadline never."""
    weights = [632, 483, 87, 63]
    with monkeypatch.context() as patch:
        patch.setattr(turns, "_LIGHTEST", ())
        assert largest_error(weights, 5000) < 1
    monkeypatch.setattr(Turns, "_keeps_windows", lambda self, *args: True)
    assert largest_error(weights, 5000) > 1.05


@pytest.mark.parametrize("weights", [[0.7, 0.3], [5, 3, 1, 1], list(np.random.default_rng(3).random(100))])
def test_positions_are_the_same_however_they_are_asked_for(weights):
    straight = Turns(weights).locate(0, 200_000)
    late = Turns(weights)
    again = late.locate(150_000, 3000), late.locate(10, 70_000), pickle.loads(pickle.dumps(late)).locate(199_990, 10)
    for found, start in zip(again, (150_000, 10, 199_990)):
        for part, whole in zip(found, straight):
            assert np.array_equal(part, whole[start : start + len(part)])


def test_more_sets_than_a_byte_counts():
    sizes = [1 + index % 3 for index in range(300)]
    blender = DatasetBlender([Numbered(index, size) for index, size in enumerate(sizes)])
    seen = [blender[n] for n in range(len(blender))]
    assert sorted(seen) == [(name, number) for name, size in enumerate(sizes) for number in range(size)]


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_by_size_every_sample_comes_once(sizes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "_CHUNK", 64)
        check_that_every_sample_comes_once(sizes)


def check_that_every_sample_comes_once(sizes):
    blender = DatasetBlender([Numbered(index, size) for index, size in enumerate(sizes)])
    assert sorted(blender) == [(name, number) for name, size in enumerate(sizes) for number in range(size)]
    assert blender.first_repeat(len(blender) + 5) == len(blender) == sum(sizes)


def test_no_tail_starves():
    """10 and 90 samples at 0.7 and 0.3: the small set comes seven times, and the large one goes on to its end."""
    blender = DatasetBlender([Numbered(0, 10), Numbered(1, 90)], [0.7, 0.3])
    order = training_order(blender, seed=0)
    numbers = order.samples(0, 300)
    sets, samples = numbers % 2, numbers // 2
    assert np.bincount(samples[sets == 0] % 10).tolist() == [21] * 10
    assert sorted(samples[sets == 1]) == list(range(90))


def test_training_shuffles_each_set_anew_every_epoch():
    blender = DatasetBlender([Numbered(0, 10), Numbered(1, 10)], [0.5, 0.5])
    order = training_order(blender, seed=0)
    numbers = order.samples(0, 80)
    epochs = [(numbers[numbers % 2 == index] // 2).reshape(4, 10) for index in range(2)]
    for of_set in epochs:
        assert [sorted(epoch) for epoch in of_set] == [list(range(10 * e, 10 * e + 10)) for e in range(4)]
    assert len({tuple(epoch % 10) for of_set in epochs for epoch in of_set}) == 8
    assert np.array_equal(order.samples(37, 20), numbers[37:57])
    assert not np.array_equal(training_order(blender, seed=1).samples(0, 80), numbers)
    sample = blender.sample(int(numbers[5]))
    assert sample.input_ids.tolist() == [numbers[5] % 2, numbers[5] // 2]


def test_evaluation_by_weight_ends_before_a_sample_comes_twice():
    sets = [Numbered(0, 10), Numbered(1, 90)]
    assert num_distinct(DatasetBlender(sets), at_most=1000) == 100
    weighted = DatasetBlender(sets, [0.7, 0.3])
    count = num_distinct(weighted, at_most=1000)
    assert count in (14, 15) and num_distinct(weighted, at_most=8) == 8
    numbers = evaluation_order(weighted).samples(0, count)
    assert len(set(numbers)) == count and (numbers[numbers % 2 == 0] // 2 == np.arange(10)).all()


def test_blends_of_blends():
    inner = DatasetBlender([Numbered(0, 4), Numbered(1, 6)])
    outer = DatasetBlender([inner, Numbered(2, 10)])
    assert len(set(outer)) == 20


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([0.5, -0.5], r"weights\[1\]=-0.5"),
        ([0, 0], "all are 0"),
        ([1, float("nan")], r"weights\[1\]=nan"),
        ([1], "1 of them for 2"),
        ([], "none"),
    ],
)
def test_weights_that_are_none(weights, words):
    with pytest.raises(DataError, match=words):
        DatasetBlender([Numbered(0, 1), Numbered(1, 1)], weights)


def test_an_empty_set_may_not_have_a_weight():
    with pytest.raises(DataError, match=r"datasets\[1\]"):
        DatasetBlender([Numbered(0, 3), Numbered(1, 0)], [1, 1])
    assert list(DatasetBlender([Numbered(0, 3), Numbered(1, 0)])) == [(0, 0), (0, 1), (0, 2)]


def test_a_name_is_no_data_set():
    with pytest.raises(DataError, match=r"datasets\[1\]='data/b': a name"):
        DatasetBlender([range(3), "data/b"])
