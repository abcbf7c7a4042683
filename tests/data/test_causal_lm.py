"""Packed documents: every token once an epoch, parts that share nothing, and Hugging Face's loss over all of them."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from indexed_fixtures import numbered, write_prefix
from torch.utils.data import DataLoader

from gooseslo.data import DatasetForCausalLM
from gooseslo.data.indexed.index_cache import IndexCache
from gooseslo.engine.model_config import make_config
from gooseslo.errors import DataError
from gooseslo.testing.models import tiny_fields

SIZES = [5, 4, 8]


@pytest.fixture(scope="module", autouse=True)
def uncached():
    """Hundreds of small sets: waiting for the disk is what would take the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IndexCache, "array", lambda self, facts, build, **options: build())
        yield


def predicted(dataset, epoch):
    samples = [dataset.sample(epoch * len(dataset) + index) for index in range(len(dataset))]
    return np.concatenate([sample.labels for sample in samples]), samples


def test_samples_overlap_by_one_token_and_have_no_more_than_asked_for(tmp_path):
    """17 tokens in documents of 5, 4, 8: 4 samples of 4, from 0, 4, 8 and 12 of the stream."""
    prefix = write_prefix(tmp_path / "a", numbered(SIZES))
    dataset = DatasetForCausalLM(str(prefix), 4)
    assert len(dataset) == len(DatasetForCausalLM(f"{prefix}.bin", 4)) == 4
    assert [len(DatasetForCausalLM(prefix, length)) for length in (8, 16)] == [2, 1]
    stream = np.concatenate([dataset.tokens(0)[:1], predicted(dataset, 0)[0]])
    assert sorted(stream) == list(range(17))
    for index in range(4):
        assert list(dataset.tokens(index)) == list(stream[4 * index : 4 * index + 5])
        example = dataset[index]
        assert example["input_ids"].tolist() == example["labels"].tolist() == list(stream[4 * index : 4 * index + 4])
        assert example["shift_labels"].tolist() == list(stream[4 * index + 1 : 4 * index + 5])
    with pytest.raises(IndexError):
        dataset[4]
    assert len(list(dataset)) == 4 and torch.equal(dataset[-1]["input_ids"], dataset[3]["input_ids"])
    with pytest.raises(DataError, match=r"3 of the 3 documents .* have 17 tokens"):
        DatasetForCausalLM(prefix, 17)


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=20),
    length=st.integers(1, 12),
    epoch=st.integers(0, 3),
    reader=st.sampled_from(["mmap", "lazy", "cached"]),
    seed=st.integers(0, 2**63 - 1),
)
def test_every_token_but_the_first_and_the_tail_is_predicted_once_an_epoch(
    tmp_path_factory, sizes, length, epoch, reader, seed
):
    total = sum(sizes)
    if total <= length:
        return
    prefix = write_prefix(tmp_path_factory.mktemp("data") / "a", numbered(sizes), "int32")
    dataset = DatasetForCausalLM(prefix, length, reader, seed=seed)
    labels, samples = predicted(dataset, epoch)
    assert len(labels) == len(dataset) * length and total - 1 - len(labels) < length
    stream = np.concatenate([samples[0].input_ids[:1], labels])
    assert len(set(stream)) == len(stream)
    assert np.array_equal(np.concatenate([sample.input_ids for sample in samples]), stream[:-1])
    # documents are whole and in one piece: a token follows its predecessor, or begins a document after another's end
    bounds = np.cumsum([0, *sizes])
    follows = np.diff(stream) == 1
    assert (follows | (np.isin(stream[1:], bounds) & np.isin(stream[:-1] + 1, bounds))).all()


@settings(deadline=None, max_examples=60)
@given(
    cuts=st.lists(st.floats(0, 1), min_size=1, max_size=4, unique=True),
    num_documents=st.integers(1, 60),
)
def test_ranges_that_meet_share_no_document_and_leave_none_out(tmp_path_factory, cuts, num_documents):
    prefix = write_prefix(tmp_path_factory.mktemp("data") / "a", numbered([2] * num_documents))
    bounds = sorted({0.0, *cuts, 1.0})
    documents = []
    for start, end in pairwise(bounds):
        try:
            part = DatasetForCausalLM(prefix, 1, start_weight=start, end_weight=end)
        except DataError as error:
            assert "0 of the" in str(error)
            continue
        labels, samples = predicted(part, 0)
        tokens = {int(samples[0].input_ids[0]), *labels.tolist()}
        assert tokens == {token for document in part.documents for token in (2 * document, 2 * document + 1)}
        documents += part.documents
    assert documents == list(range(num_documents))


def test_a_split_of_98_1_and_1_percent(tmp_path):
    prefix = write_prefix(tmp_path / "a", numbered([3] * 1000))
    ranges = [(0.0, 0.98), (0.98, 0.99), (0.99, 1.0)]
    # as in the seeds' example, two of the three have the same split_type
    parts = [DatasetForCausalLM(prefix, 2, "mmap", t, *r) for t, r in zip(("train", "valid", "valid"), ranges)]
    tokens = [{*predicted(part, 0)[0].tolist(), int(part.tokens(0)[0])} for part in parts]
    assert [len(part.documents) for part in parts] == [980, 10, 10]
    assert not (tokens[0] & tokens[1] or tokens[0] & tokens[2] or tokens[1] & tokens[2])
    # S = 2 leaves at most one token of each part to its tail
    assert [3 * len(part.documents) - len(own) for part, own in zip(parts, tokens)] == [1, 1, 1]


def test_epochs_and_seeds_have_orders_of_their_own(tmp_path):
    prefix = write_prefix(tmp_path / "a", numbered([7] * 40))

    def first(seed, epoch):
        dataset = DatasetForCausalLM(prefix, 279, seed=seed)
        return tuple(dataset.tokens(epoch))

    assert len({first(seed, epoch) for seed in (0, 1) for epoch in (0, 1, 2, 999)}) == 8
    assert first(1, 2) == first(1, 2)


@pytest.mark.parametrize("range_", [(0.5, 0.5), (0.6, 0.5), (-0.1, 1.0), (0.0, 1.1)])
def test_a_range_that_is_none(tmp_path, range_):
    prefix = write_prefix(tmp_path / "a", numbered(SIZES))
    with pytest.raises(DataError, match="0 <= start < end <= 1"):
        DatasetForCausalLM(prefix, 2, start_weight=range_[0], end_weight=range_[1])


def test_it_travels_to_the_workers_of_a_data_loader(tmp_path):
    dataset = DatasetForCausalLM(write_prefix(tmp_path / "a", numbered(SIZES)), 4)
    before = dataset.tokens(2)
    again = pickle.loads(pickle.dumps(dataset))
    assert np.array_equal(again.tokens(2), before) and len(pickle.dumps(dataset)) < 2000
    batch = next(iter(DataLoader(dataset, batch_size=4, shuffle=False)))
    assert {name: tuple(values.shape) for name, values in batch.items()} == dict.fromkeys(
        ["input_ids", "labels", "shift_labels"], (4, 4)
    )


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_hugging_faces_loss_is_the_trainers(tmp_path, architecture):
    """`model(**batch)` scores all S predictions of each sample, the last one too."""
    from transformers import AutoModelForCausalLM

    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 96, size) for size in (30, 7, 40)]
    dataset = DatasetForCausalLM(write_prefix(tmp_path / "a", documents), 16)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(make_config(architecture, tiny_fields(architecture))).double().eval()
    batch = next(iter(DataLoader(dataset, batch_size=4)))
    with torch.no_grad():
        output = model(**batch)
        samples = [dataset.sample(index) for index in range(4)]
        labels = torch.stack([torch.from_numpy(sample.labels) for sample in samples])
        expected = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten())
        shifted_inside = model(input_ids=batch["input_ids"], labels=batch["labels"]).loss
    assert abs(output.loss.item() - expected.item()) < 1e-6
    assert abs(shifted_inside.item() - expected.item()) > 1e-4


@pytest.mark.parametrize("length", [0, -1, 16.5, True])
def test_a_length_that_is_none(tmp_path, length):
    write_prefix(tmp_path / "a", numbered(SIZES))
    with pytest.raises(DataError, match="max_seq_length"):
        DatasetForCausalLM(tmp_path / "a", length)
    with pytest.raises(DataError, match="readers: mmap, lazy, cached"):
        DatasetForCausalLM(tmp_path / "a", 2, binarization_impl="foo")
