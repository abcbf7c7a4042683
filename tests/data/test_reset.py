"""`reset_at_document`: where a document begins, positions begin again, whoever says where that is."""

import numpy as np
import pytest
from indexed_fixtures import write_prefix

from gooseslo.data.indexed.causal_lm import DatasetForCausalLM
from gooseslo.data.text.packed import PackedDataset

EOD = 0


def restarts(sample):
    return np.flatnonzero(sample.position_ids == 0).tolist()


def test_the_end_token_ends_a_document():
    tokens = np.array([3, 4, EOD, 5, EOD, 6, 7, 8, EOD], dtype=np.uint16)
    data = PackedDataset(tokens, 4, document_end=EOD)
    assert restarts(data.sample(0)) == [0, 3] and data.sample(0).labels.tolist() == [4, EOD, -100, EOD]
    assert restarts(data.sample(1)) == [0, 1] and data.sample(1).labels.tolist() == [-100, 7, 8, EOD]
    assert data.sample(2).labels.tolist() == data.sample(0).labels.tolist(), "numbers go on over epochs"
    assert PackedDataset(tokens, 4).sample(0).position_ids is None


@pytest.mark.parametrize("reader", ["mmap", "lazy", "cached"])
def test_the_index_says_where_documents_begin(tmp_path, reader):
    """By the file's documents, whatever ends them: each counts up in tens, so a token tells where it stands."""
    write_prefix(tmp_path / "a", [np.arange(10 * k, 10 * k + length) for k, length in enumerate([7, 1, 9, 4, 6, 5])])
    data = DatasetForCausalLM(tmp_path / "a", 5, reader, reset_at_document=True)
    for number in range(3 * data.num_samples):
        sample, tokens = data.sample(number), data.tokens(number)
        starts = [place for place in range(5) if place == 0 or tokens[place] != tokens[place - 1] + 1]
        assert restarts(sample) == starts
        expected = [
            label if label == token + 1 else -100 for token, label in zip(tokens[:-1].tolist(), tokens[1:].tolist())
        ]
        assert sample.labels.tolist() == expected
    example = data.example(1)
    assert set(example) == {"input_ids", "labels", "shift_labels", "position_ids"}
    # A loss that shifts the labels itself, and knows nothing of shift_labels, learns the same but for the last place.
    assert example["labels"][1:].tolist() == example["shift_labels"][:-1].tolist()
    assert DatasetForCausalLM(tmp_path / "a", 5, reader).sample(0).position_ids is None
