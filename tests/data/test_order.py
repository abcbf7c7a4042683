"""Which samples a step has: independent of dp, micro-batches, reading threads and where a run was stopped."""

import threading

import numpy as np
import pytest
import torch
from indexed_fixtures import numbered, write_prefix

from gooseslo.data.indexed.causal_lm import DatasetForCausalLM
from gooseslo.data.order import ahead, order
from gooseslo.data.order.blend import DatasetBlender
from gooseslo.data.order.loader import EvalLoader, TrainLoader
from gooseslo.data.order.order import training_order
from gooseslo.data.text.packed import random_words

STEPS, BATCH = 40, 8


@pytest.fixture
def data(tmp_path):
    """One data set, or a blend in which the smaller set is begun again several times."""
    one = DatasetForCausalLM(write_prefix(tmp_path / "a", numbered([9, 5, 7] * 10)), 4, seed=7)
    other = DatasetForCausalLM(write_prefix(tmp_path / "b", numbered([6] * 5, first=1000)), 4, seed=7)
    return {"one": one, "blend": DatasetBlender([one, other], [0.6, 0.4])}


def loaders_of(dataset, *, dp=1, micro=1, workers=0, end=None):
    return [
        TrainLoader(
            dataset,
            training_order(dataset, seed=7),
            global_batch_size=BATCH,
            micro_batch_size=micro,
            dp_rank=rank,
            dp_size=dp,
            workers=workers,
            end=end,
        )
        for rank in range(dp)
    ]


def steps_of(loaders, first, last):
    """[step]: the sample numbers and the tokens of the global batch, as the ranks read them."""
    found = []
    for step in range(first, last):
        parts = [loader.batch(step * BATCH) for loader in loaders]
        ids = torch.cat([part.sample_ids for part in parts]).tolist()
        found.append((ids, torch.cat([part.input_ids for part in parts]).tolist()))
    for loader in loaders:
        loader.close()
    return found


@pytest.mark.parametrize("kind", ["one", "blend"])
def test_forty_steps_at_any_layout_and_after_a_stop(data, kind):
    dataset = data[kind]
    expected = steps_of(loaders_of(dataset), 0, STEPS)
    ids = [number for step, _ in expected for number in step]
    assert len(set(ids)) == len(ids) == STEPS * BATCH  # numbers go on over epochs: none comes again
    for dp, micro, workers in ((2, 2, 1), (4, 1, 0), (4, 2, 3)):
        assert steps_of(loaders_of(dataset, dp=dp, micro=micro, workers=workers), 0, STEPS) == expected
    stopped = steps_of(loaders_of(dataset, dp=4, micro=1, workers=2), 0, 17)
    resumed = steps_of(loaders_of(dataset, dp=2, micro=4, workers=1), 17, STEPS)
    assert stopped + resumed == expected


def test_epochs_differ_in_their_samples_not_only_in_their_order(data):
    """Documents are packed anew: the same samples twice would be another order of the first epoch's."""
    dataset = data["one"]
    numbers = training_order(dataset, seed=7).samples(0, 2 * len(dataset))
    epochs = [{tuple(dataset.tokens(int(number))) for number in part} for part in np.split(numbers, 2)]
    assert epochs[0] != epochs[1] and all(len(epoch) == len(dataset) for epoch in epochs)


class Watched:
    """A data set that notes which thread reads what, and fails at one sample."""

    sequence_length, num_samples = 4, 100

    def __init__(self, dataset, *, fails_at=None):
        self.dataset, self.fails_at = dataset, fails_at
        self.readers, self._read = {}, threading.Condition()

    def wait_for(self, numbers):
        with self._read:
            return self._read.wait_for(lambda: self.readers.keys() >= set(numbers), timeout=60)

    def sample(self, number):
        with self._read:
            self.readers[number] = threading.current_thread()
            self._read.notify_all()
        if number == self.fails_at:
            raise RuntimeError(f"sample {number} cannot be read")
        return self.dataset.sample(number)


def test_the_next_batch_is_read_while_a_step_computes(data):
    dataset = Watched(data["one"])
    (loader,) = loaders_of(dataset, workers=1)
    loader.batch(0)
    following = training_order(dataset, seed=7).samples(BATCH, BATCH).tolist()
    assert dataset.wait_for(following), "nobody has asked for them yet"
    assert threading.main_thread() not in dataset.readers.values()
    loader.close()
    (loader,) = loaders_of(Watched(data["one"]))
    loader.batch(0)
    assert set(loader._dataset.readers.values()) == {threading.main_thread()}
    assert len(loader._dataset.readers) == BATCH


def test_what_fails_in_a_thread_is_raised_in_its_step_and_no_thread_is_left(data):
    numbers = training_order(Watched(data["one"]), seed=7)
    before = threading.active_count()
    (loader,) = loaders_of(Watched(data["one"], fails_at=int(numbers.samples(2 * BATCH + 3, 1)[0])), workers=2)
    loader.batch(0)
    loader.batch(BATCH)
    with pytest.raises(RuntimeError, match="cannot be read"):
        loader.batch(2 * BATCH)
    assert threading.active_count() > before
    loader.close()
    assert threading.active_count() == before


def test_nothing_is_read_beyond_the_runs_last_step(data):
    """An epoch's index may have to be built for it."""
    dataset = Watched(data["one"])
    (loader,) = loaders_of(dataset, workers=3, end=4 * BATCH)
    for step in range(1, 4):
        loader.batch(step * BATCH)
    loader.close()
    assert set(dataset.readers) == set(training_order(dataset, seed=7).samples(BATCH, 3 * BATCH).tolist())


class Stuck(Watched):
    """A data set on a disk that does not answer, but for the first batch."""

    def __init__(self, dataset):
        super().__init__(dataset)
        self.answers = threading.Event()

    def sample(self, number):
        found = super().sample(number)
        assert len(self.readers) <= BATCH or self.answers.wait(60)
        return found


def test_the_end_does_not_wait_for_a_read_that_hangs(data, monkeypatch):
    monkeypatch.setattr(ahead, "_PATIENCE_SECONDS", 0.05)
    dataset = Stuck(data["one"])
    (loader,) = loaders_of(dataset, workers=1)
    loader.batch(0)
    following = training_order(dataset, seed=7).samples(BATCH, 1).tolist()
    assert dataset.wait_for(following)
    loader.close()
    reader = dataset.readers[following[0]]
    assert reader.is_alive() and reader.daemon, "the process can end without it"
    dataset.answers.set()
    reader.join(60)
    assert not reader.is_alive()


def test_readers_on_both_sides_of_an_epochs_border_share_two_orders(monkeypatch):
    drawn = []
    monkeypatch.setattr(order, "random_words", lambda key, count: drawn.append(key) or random_words(key, count))
    shuffled = order.SampleOrder(num_samples=10, seed=0)
    for position in (8, 12, 9, 13, 8, 11):
        shuffled.samples(position, 1)
    assert drawn == [(0, 0, 0), (0, 0, 1)]


@pytest.mark.parametrize("dp", [1, 2, 4])
def test_evaluation_of_a_blend_reads_every_sample_once(data, dp):
    dataset = DatasetBlender(data["blend"].datasets)
    loaders = [
        EvalLoader(dataset, eval_batches=100, global_batch_size=8, dp_rank=rank, dp_size=dp) for rank in range(dp)
    ]
    ids = [number for loader in loaders for batch in loader for number in batch.sample_ids.tolist() if number >= 0]
    sizes = dataset.sizes
    assert sorted(ids) == sorted(index * 2 + k for k, size in enumerate(sizes) for index in range(size))
    assert loaders[0].num_samples == sum(sizes)
