"""One row of a batch, and how it is cut from a stretch of tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

IGNORED_LABEL = -100


class Sample(NamedTuple):
    """What the model reads and what it is to predict, all int64 [S]; `labels` are shifted: labels[j] follows ids[j]."""

    input_ids: np.ndarray
    labels: np.ndarray
    """-100 where nothing is to be learnt."""
    position_ids: np.ndarray | None = None
    """Beginning again from 0 where a document begins that must not see those before it; None: nowhere."""


def cut_sample(tokens: np.ndarray, starts: np.ndarray | None = None) -> Sample:
    """The sample in S + 1 consecutive tokens.

    With `starts`, the places among these tokens at which documents begin, in order, each document is read for itself:
    the last token of one predicts nothing, since what follows it there is another's. What the stretch begins with is a
    document of its own, be it the rest of a longer one.
    """
    tokens = tokens.astype(np.int64)
    if starts is None:
        return Sample(tokens[:-1], tokens[1:])
    labels = tokens[1:].copy()
    starts = starts[starts > 0]
    labels[starts - 1] = IGNORED_LABEL
    return Sample(tokens[:-1], labels, restarting_positions(len(labels), starts[starts < len(labels)]))


def restarting_positions(length: int, starts: np.ndarray) -> np.ndarray:
    """int64 [length]: 0, 1, 2 ... from the beginning and again from each of `starts`, which ascend."""
    places = np.arange(length)
    begins = np.zeros(length, dtype=np.int64)
    begins[starts] = starts
    return places - np.maximum.accumulate(begins)
