"""Rows of a batch: shifted labels, and documents that do not see each other."""

import numpy as np
import pytest

from gooseslo.data.order.sample import cut_sample

TOKENS = np.array([3, 4, 0, 5, 0, 6, 7], dtype=np.uint16)


def listed(sample):
    return [None if part is None else part.tolist() for part in sample]


def test_labels_follow_their_inputs():
    assert listed(cut_sample(TOKENS)) == [[3, 4, 0, 5, 0, 6], [4, 0, 5, 0, 6, 7], None]


@pytest.mark.parametrize(
    ("starts", "labels", "positions"),
    [
        ([], [4, 0, 5, 0, 6, 7], [0, 1, 2, 3, 4, 5]),
        ([0], [4, 0, 5, 0, 6, 7], [0, 1, 2, 3, 4, 5]),
        ([0, 3, 5], [4, 0, -100, 0, -100, 7], [0, 1, 2, 0, 1, 0]),
        ([3, 3, 5], [4, 0, -100, 0, -100, 7], [0, 1, 2, 0, 1, 0]),
        ([6], [4, 0, 5, 0, 6, -100], [0, 1, 2, 3, 4, 5]),
        ([1, 2], [-100, -100, 5, 0, 6, 7], [0, 0, 0, 1, 2, 3]),
    ],
    ids=["one document", "from the first token", "three", "with an empty one", "at the last label", "of one token"],
)
def test_documents_are_read_for_themselves(starts, labels, positions):
    sample = cut_sample(TOKENS, np.array(starts, dtype=np.int64))
    assert listed(sample) == [[3, 4, 0, 5, 0, 6], labels, positions]
    assert all(part.dtype == np.int64 for part in sample)
