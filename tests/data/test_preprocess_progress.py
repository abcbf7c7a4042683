"""Speeds and the time left are those of this process, and lines come at their time."""

import io

import pytest

from gooseslo.data.preprocess.folder import Tally
from gooseslo.data.preprocess.progress import ProgressReport, duration


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def report(clock, **options):
    return ProgressReport(io.StringIO(), title="wiki", clock=clock, **{"total_bytes": 10_000_000, **options})


def test_speed_and_time_left_count_from_where_it_went_on():
    clock = Clock()
    with report(clock) as progress:
        progress.update(5_000_000, Tally(documents=1000, tokens=10**6, text_bytes=4_000_000))
        clock.now += 4
        progress.update(6_000_000, Tally(documents=1400, tokens=14 * 10**5, text_bytes=4_800_000))
        assert progress._stream.getvalue() == ""
        clock.now += 6
        progress.update(7_000_000, Tally(documents=1800, tokens=2 * 10**6, text_bytes=5_600_000))
    line = "wiki   70%  0.2 MB/s  80 documents/s  100.0k tokens/s  15 s left\n"
    assert progress._stream.getvalue() == line


def test_without_a_size_nothing_is_said_of_the_rest():
    clock = Clock()
    with report(clock, total_bytes=None, documents_per_line=10) as progress:
        progress.update(0, Tally())
        clock.now += 2
        progress.update(0, Tally(documents=9, tokens=40, text_bytes=2_000_000))
        progress.update(0, Tally(documents=12, tokens=50, text_bytes=2_000_000))
    assert progress._stream.getvalue() == "wiki  1.0 MB/s  6 documents/s  25 tokens/s\n"


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (59, "59 s"), (61, "1:01 min"), (3725, "1:02 h")])
def test_durations(seconds, words):
    assert duration(seconds) == words
