"""Chunks hold every byte of a file once, with the right numbers of lines, from every position on."""

import gzip

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gooseslo.data.preprocess import streams
from gooseslo.data.preprocess.chunks import Position, ReadOptions, read_chunks
from gooseslo.data.preprocess.inputs import find_sources
from gooseslo.data.preprocess.work import Chunk, texts_of

CONTENT = st.lists(st.sampled_from([b"", b"a", b"goose honk", b"x" * 40, b"\r", b"\xe2\x80\xa8"]), min_size=1).map(
    b"\n".join
)
COMPRESS = {"": lambda data: data, ".gz": gzip.compress, ".zst": zstandard.compress}


def chunks_of(path, start, size):
    (source,) = find_sources(path.name, base_dir=path.parent)
    return list(read_chunks([source], ReadOptions(chunk_size=size), start))


@pytest.mark.parametrize("compression", COMPRESS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=CONTENT, size=st.integers(1, 5), block=st.integers(1, 60), mark=st.booleans(), ends=st.booleans())
def test_chunks_hold_every_line_once(tmp_path, monkeypatch, compression, content, size, block, mark, ends):
    monkeypatch.setattr(streams, "_BLOCK_BYTES", block)
    content = b"z" + content + (b"\n" if ends else b"")
    path = tmp_path / f"a.txt{compression}"
    path.write_bytes(COMPRESS[compression](b"\xef\xbb\xbf" * mark + content))
    found = chunks_of(path, Position(), size)
    assert b"".join(placed.chunk.content for placed in found) == content
    line = 1
    for number, placed in enumerate(found):
        chunk = placed.chunk
        assert chunk.first_line == line and 1 <= chunk.num_lines <= size
        assert chunk.num_lines == len(chunk.content.removesuffix(b"\n").split(b"\n"))
        assert chunk.content.endswith(b"\n") or number == len(found) - 1
        line += chunk.num_lines
        rest = chunks_of(path, placed.end, 3) if number % 3 == 0 else None
        if rest is not None:
            after = b"".join(later.chunk.content for later in found[number + 1 :])
            assert b"".join(later.chunk.content for later in rest) == after
            assert not rest or rest[0].chunk.first_line == line
    assert found[-1].end.offset == len(content) + 3 * mark


def test_lines_that_are_no_records():
    content = b'\n  \r\n{"text": "a"}\r\n\t\n{"text": "b"}'
    chunk = Chunk(kind="jsonl", content=content, first_line=10, num_lines=5)
    assert texts_of(chunk, "text") == (["a", "b"], [])
    assert chunk.lines == "lines 10 to 14"


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (b'{"data": {"text": "a"}}', "no key 'data.body'; keys of 'data': text"),
        (b'{"data": "a"}', "no key 'data.body': 'data' is a text"),
        (b'{"body": "a"}', "no key 'data.body'; keys: body"),
        (b"{}", "no key 'data.body'; keys: none"),
        (b"1" * 5000, "not JSON: too large or too deeply nested"),
        (b"[" * 100_000, "not JSON: too large or too deeply nested"),
        (b'{"data.body": 1}', "'data.body' is a number, not a text"),
    ],
    ids=range(7),
)
def test_nested_keys_that_are_not_there(line, rule):
    texts, (rejected,) = texts_of(Chunk(kind="jsonl", content=line, first_line=3, num_lines=1), "data.body")
    assert texts == [] and rejected.rule == rule and rejected.place == "line 3"


def test_a_nested_key_and_one_with_a_dot():
    content = b'{"data": {"body": "a"}, "x": 1}\n{"data.body": "b", "data": {"body": "c"}}\n'
    assert texts_of(Chunk(kind="jsonl", content=content, first_line=1, num_lines=2), "data.body") == (["a", "b"], [])
