"""Samples and their order: every token once an epoch, whatever the layout, and the same after any restart."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gooseslo.data.order.loader import EvalLoader, TrainLoader
from gooseslo.data.order.order import SampleOrder
from gooseslo.data.order.sample import IGNORED_LABEL
from gooseslo.data.text.packed import PackedDataset, SyntheticDataset
from gooseslo.errors import DataError


def dataset_of(num_samples, sequence_length=4):
    return PackedDataset(np.arange(num_samples * sequence_length + 1, dtype=np.uint16), sequence_length)


def loader_of(dataset, *, seed=0, batch=4, micro=1, dp_rank=0, dp_size=1):
    order = SampleOrder(num_samples=dataset.num_samples, seed=seed)
    return TrainLoader(
        dataset, order, global_batch_size=batch, micro_batch_size=micro, dp_rank=dp_rank, dp_size=dp_size
    )


def test_samples_are_cut_one_token_apart():
    tokens = np.arange(100, 117, dtype=np.uint16)
    packed = PackedDataset(tokens, 4)
    assert packed.num_samples == 4
    assert [packed.sample(i).input_ids.tolist() for i in (0, 3)] == [[100, 101, 102, 103], [112, 113, 114, 115]]
    assert packed.sample(3).labels.tolist() == [113, 114, 115, 116]
    assert packed.sample(7).labels.tolist() == packed.sample(3).labels.tolist()  # every epoch has the same samples
    assert [PackedDataset(tokens, length).num_samples for length in (8, 16)] == [2, 1]
    with pytest.raises(DataError):
        PackedDataset(tokens, 17)


@given(num_tokens=st.integers(2, 300), length=st.integers(1, 40))
def test_every_token_but_the_first_is_predicted_once(num_tokens, length):
    if num_tokens <= length:
        return
    packed = PackedDataset(np.arange(num_tokens, dtype=np.uint16), length)
    labels = np.concatenate([packed.sample(i).labels for i in range(packed.num_samples)])
    assert labels.tolist() == list(range(1, packed.num_samples * length + 1))
    assert num_tokens - 1 - len(labels) < length


@given(num_samples=st.integers(1, 50), seed=st.integers(0, 2**63), epoch=st.integers(0, 5))
def test_an_epoch_is_a_permutation(num_samples, seed, epoch):
    order = SampleOrder(num_samples=num_samples, seed=seed)
    first = epoch * num_samples
    assert sorted(order.samples(first, num_samples)) == list(range(first, first + num_samples))


def test_epochs_and_seeds_differ_and_the_order_never_changes():
    order = SampleOrder(num_samples=20, seed=42)
    epochs = [tuple(order.samples(20 * epoch, 20) % 20) for epoch in range(4)]
    assert [tuple(order.samples(20 * epoch, 20) % 20) for epoch in reversed(range(4))] == epochs[::-1]
    assert len({*epochs, tuple(SampleOrder(num_samples=20, seed=43).samples(0, 20))}) == 5
    assert list(SampleOrder(num_samples=8, seed=42).samples(0, 16)) == [
        0, 6, 7, 5, 3, 2, 4, 1, 10, 15, 8, 13, 11, 12, 9, 14,
    ]  # fmt: skip


@settings(deadline=None)
@given(
    num_samples=st.integers(1, 30),
    dp_size=st.sampled_from([1, 2, 3]),
    micro=st.sampled_from([1, 2]),
    steps=st.integers(1, 4),
)
def test_order_is_independent_of_dp_and_micro_batches(num_samples, dp_size, micro, steps):
    dataset, batch = dataset_of(num_samples), 12
    whole = loader_of(dataset, batch=batch)
    parts = [loader_of(dataset, batch=batch, micro=micro, dp_rank=rank, dp_size=dp_size) for rank in range(dp_size)]
    for step in range(steps):
        rows = [m for part in parts for m in part.batch(step * batch).input_ids.split(micro)]
        assert all(len(row) == micro for row in rows)
        assert torch.equal(torch.cat(rows), whole.batch(step * batch).input_ids)


@settings(deadline=None)
@given(position=st.integers(0, 200), num_samples=st.integers(1, 30))
def test_resume_at_any_position_gives_the_same_batches(position, num_samples):
    dataset = dataset_of(num_samples)
    straight = loader_of(dataset)
    for consumed in range(position % 4, position, 4):
        straight.batch(consumed)
    resumed = loader_of(dataset)
    assert torch.equal(straight.batch(position).sample_ids, resumed.batch(position).sample_ids)


def test_resume_in_the_middle_of_an_epoch_keeps_that_epochs_order():
    dataset = dataset_of(20)
    steps = [loader_of(dataset, seed=42).batch(4 * step).sample_ids.tolist() for step in range(15)]
    resumed = [loader_of(dataset, seed=42, dp_rank=r, dp_size=2) for r in range(2)]
    for step in range(7, 15):
        assert [i for part in resumed for i in part.batch(4 * step).sample_ids.tolist()] == steps[step]
    assert sorted(i for step in steps[5:10] for i in step) == list(range(20, 40))


def test_labels_belong_to_their_inputs():
    batch = loader_of(dataset_of(10)).batch(8)
    assert torch.equal(batch.labels, batch.input_ids + 1)
    assert torch.equal(batch.input_ids[:, 0] // 4, batch.sample_ids % 10)
    assert batch.input_ids.dtype == batch.labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("num_samples", "eval_batches", "scored", "batches"), [(10, 8, 10, 3), (10, 1, 4, 1), (2, 3, 2, 1)]
)
@pytest.mark.parametrize("dp_size", [1, 2, 4])
def test_evaluation_reads_the_same_first_samples_in_full_batches(num_samples, eval_batches, scored, batches, dp_size):
    loaders = [
        EvalLoader(
            dataset_of(num_samples), eval_batches=eval_batches, global_batch_size=4, dp_rank=rank, dp_size=dp_size
        )
        for rank in range(dp_size)
    ]
    per_rank = [list(loader) for loader in loaders]
    assert {len(rank) for rank in per_rank} == {batches} == {loader.num_batches for loader in loaders}
    seen = []
    for step in zip(*per_rank):
        for batch in step:
            assert batch.input_ids.shape == batch.labels.shape == (4 // dp_size, 4)
            filler = batch.sample_ids == -1
            assert (batch.labels[filler] == IGNORED_LABEL).all() and (batch.labels[~filler] >= 0).all()
            seen += batch.sample_ids[~filler].tolist()
    assert seen == list(range(scored)) and loaders[0].num_samples == scored


def test_no_evaluation():
    assert list(EvalLoader(dataset_of(3), eval_batches=0, global_batch_size=4, dp_rank=0, dp_size=1)) == []


def test_synthetic_samples_are_fixed_by_seed_and_number():
    def sample(seed, index):
        return (
            SyntheticDataset(seed=seed, vocab_size=50, num_samples=9, sequence_length=65)
            .sample(index)
            .input_ids.tolist()
        )

    assert len(sample(0, 0)) == 65 and min(sample(0, 0)) >= 0 and 40 < max(sample(0, 0)) < 50
    assert sample(0, 3) == sample(0, 3)
    assert len({tuple(sample(s, i)) for s in range(2) for i in range(3)}) == 6
    assert sample(0, 9) == sample(0, 0)
