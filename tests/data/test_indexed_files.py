"""PREFIX.bin and PREFIX.idx: an independent reader reads ours, we read what it writes; the rest is refused."""

import pickle
import struct

import numpy as np
import pytest

from gooseslo.data.indexed.layout import choose_dtype, pointers_of, read_index, write_index
from gooseslo.data.indexed.names import idx_path
from gooseslo.data.indexed.readers import READERS, open_indexed
from gooseslo.data.indexed.sidecar import Sidecar, SourceFile
from gooseslo.errors import DataError

TYPES = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 8: "H"}
SEQUENCES = [[3, 4, 5, 0], [], [6, 0], [7], [8, 9, 1, 2, 0]]
DOC_IDX = [0, 1, 3, 3, 5]


def independent_write(prefix, sequences, doc_idx, code=4):
    """From the table of the layout alone, with struct."""
    item = struct.calcsize(TYPES.get(code, "f"))
    sizes = [len(sequence) for sequence in sequences]
    pointers = [item * sum(sizes[:number]) for number in range(len(sizes))]
    data = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sizes), len(doc_idx))
    data += struct.pack(f"<{len(sizes)}i", *sizes) + struct.pack(f"<{len(sizes)}q", *pointers)
    data += struct.pack(f"<{len(doc_idx)}q", *doc_idx)
    prefix.with_name(prefix.name + ".idx").write_bytes(data)
    tokens = [token for sequence in sequences for token in sequence]
    prefix.with_name(prefix.name + ".bin").write_bytes(struct.pack(f"<{len(tokens)}{TYPES.get(code, 'f')}", *tokens))


def independent_read(prefix):
    data, tokens = (
        prefix.with_name(prefix.name + ".idx").read_bytes(),
        prefix.with_name(prefix.name + ".bin").read_bytes(),
    )
    assert data[:9] == b"MMIDIDX\0\0"
    version, code, count, num_bounds = struct.unpack_from("<QBQQ", data, 9)
    assert version == 1
    sizes = struct.unpack_from(f"<{count}i", data, 34)
    pointers = struct.unpack_from(f"<{count}q", data, 34 + 4 * count)
    doc_idx = struct.unpack_from(f"<{num_bounds}q", data, 34 + 12 * count)
    assert len(data) == 34 + 12 * count + 8 * num_bounds
    assert len(tokens) == sum(sizes) * struct.calcsize(TYPES[code])
    return [list(struct.unpack_from(f"<{n}{TYPES[code]}", tokens, at)) for n, at in zip(sizes, pointers)], list(doc_idx)


def write_old(prefix, sequences, doc_idx, *, code=4):
    """fairseq's first layout, which OSLO's lazy and cached write."""
    sizes = [len(sequence) for sequence in sequences]
    starts = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    item = struct.calcsize(TYPES[code])
    data = b"TNTIDX\0\0" + struct.pack("<6Q", 1, code, item, len(sizes), len(sizes), len(doc_idx))
    values = [*range(len(sizes) + 1), *starts, *sizes, *doc_idx]
    prefix.with_name(prefix.name + ".idx").write_bytes(data + struct.pack(f"<{len(values)}q", *values))
    tokens = [token for sequence in sequences for token in sequence]
    prefix.with_name(prefix.name + ".bin").write_bytes(struct.pack(f"<{len(tokens)}{TYPES[code]}", *tokens))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("code", TYPES)
def test_files_of_others_are_read(tmp_path, code, reader):
    prefix = tmp_path / "wiki-1.0"
    independent_write(prefix, SEQUENCES, DOC_IDX, code)
    data = pickle.loads(pickle.dumps(open_indexed(str(prefix), reader)))
    assert [list(data[number]) for number in range(len(data))] == SEQUENCES
    assert [list(sequence) for sequence in data[1:4]] == SEQUENCES[1:4] and list(data[-1]) == SEQUENCES[-1]
    assert data.num_documents == 4 and data.num_tokens == 12 and list(data.doc_idx) == DOC_IDX
    assert list(data.document_starts()) == [0, 4, 6, 6, 12]
    assert list(data.tokens(2, 5)) == [5, 0, 6, 0, 7] and list(data.get(4, 1, 3)) == [9, 1, 2]
    assert list(data.get(4, 5)) == [] and data.dtype == np.dtype(f"<{TYPES[code]}")
    data.prefetch([0, 4])
    for wrong in (lambda: data[5], lambda: data.get(0, 3, 2), lambda: data.get(0, -1), lambda: data.tokens(10, 3)):
        with pytest.raises(IndexError):
            wrong()


@pytest.mark.parametrize("reader", READERS)
def test_the_old_layout_is_read(tmp_path, reader):
    write_old(tmp_path / "old", SEQUENCES, DOC_IDX)
    data = open_indexed(tmp_path / "old", reader)
    assert [list(data[number]) for number in range(5)] == SEQUENCES and list(data.doc_idx) == DOC_IDX
    assert list(data.document_starts()) == [0, 4, 6, 6, 12]


@pytest.mark.parametrize("dtype", ["<u2", "<i4"])
@pytest.mark.parametrize("doc_idx", [None, DOC_IDX])
def test_files_of_ours_are_read_by_others(tmp_path, dtype, doc_idx):
    tokens = np.array([token for sequence in SEQUENCES for token in sequence], dtype=dtype)
    tokens.tofile(tmp_path / "ours.bin")
    sizes = np.array([len(sequence) for sequence in SEQUENCES])
    write_index(
        tmp_path / "ours.idx", dtype=np.dtype(dtype), sizes=sizes, doc_idx=doc_idx and np.array(doc_idx, dtype=np.int64)
    )
    assert independent_read(tmp_path / "ours") == (SEQUENCES, doc_idx or [0, 1, 2, 3, 4, 5])


def test_no_document_at_all(tmp_path):
    (tmp_path / "none.bin").touch()
    write_index(tmp_path / "none.idx", dtype=np.dtype("<u2"), sizes=np.empty(0, dtype=np.int32))
    for reader in READERS:
        data = open_indexed(tmp_path / "none", reader)
        assert (len(data), data.num_documents, data.num_tokens) == (0, 0, 0) and list(data.tokens(0, 0)) == []


def test_positions_beyond_two_gigabytes():
    sizes = np.full(3, 400_000_000, dtype=np.int32)
    assert np.concatenate(list(pointers_of(sizes, itemsize=4))).tolist() == [0, 1_600_000_000, 3_200_000_000]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(259, "<u2"), (65_536, "<u2"), (65_537, "<i4"), (70_001, "<i4")])
def test_sixteen_bits_only_where_every_id_fits(vocab_size, dtype):
    assert choose_dtype(vocab_size) == np.dtype(dtype)


def test_blocks_do_not_show(tmp_path, monkeypatch):
    monkeypatch.setattr("gooseslo.data.indexed.layout._BLOCK", 2)
    independent_write(tmp_path / "theirs", SEQUENCES, DOC_IDX)
    read = read_index(tmp_path / "theirs")
    write_index(tmp_path / "ours.idx", dtype=read.dtype, sizes=read.sizes, doc_idx=read.doc_idx)
    assert (tmp_path / "ours.idx").read_bytes() == (tmp_path / "theirs.idx").read_bytes()


def changed(at, value):
    return lambda data: data[:at] + value + data[at + len(value) :]


@pytest.mark.parametrize(
    ("suffix", "change", "words"),
    [
        (".idx", lambda data: data[:-3], "x.idx: cut short: 131 bytes of 134"),
        (".idx", lambda data: data[:20], "cut short: 20 bytes are less than its header"),
        (".idx", lambda data: b"", "not an index of tokenised documents"),
        (".idx", lambda data: data + b"\0", "longer than its header says"),
        (".idx", lambda data: b"PAR1" + data, r"it begins with b'PAR1MMIDI'"),
        (".idx", changed(9, b"\2"), "version 2"),
        (".idx", changed(17, b"\6"), "its items are float32, not token ids"),
        (".idx", changed(17, b"\x63"), "unknown \\(code 99\\)"),
        (".idx", changed(34, struct.pack("<i", 5)), "damaged: its sequences do not lie"),
        (".idx", changed(34, struct.pack("<i", -4)), "damaged: its sequences do not lie"),
        (".idx", changed(34 + 20, struct.pack("<q", 4)), "damaged: its sequences do not lie"),
        (".idx", changed(134 - 8, struct.pack("<q", 4)), "damaged: its documents do not cover"),
        (".idx", changed(134 - 32, struct.pack("<q", 4)), "damaged: its documents do not cover"),
        (".bin", lambda data: data[:-4], "x.bin: cut short: 44 bytes, and x.idx speaks of 48"),
        (".bin", lambda data: data + b"1234", "longer than its index says, or another's"),
    ],
)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_not_whole_is_refused(tmp_path, suffix, change, words, reader):
    independent_write(tmp_path / "x", SEQUENCES, DOC_IDX)
    file = tmp_path / f"x{suffix}"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(DataError, match=words):
        open_indexed(tmp_path / "x", reader)


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_missing_file_is_named(tmp_path, suffix):
    independent_write(tmp_path / "x", SEQUENCES, DOC_IDX)
    (tmp_path / f"x{suffix}").unlink()
    with pytest.raises(DataError, match=f"x{suffix}: no such file"):
        open_indexed(tmp_path / "x")


def test_swapped_files_are_refused(tmp_path):
    independent_write(tmp_path / "x", SEQUENCES, DOC_IDX)
    content = (tmp_path / "x.bin").read_bytes()
    (tmp_path / "x.idx").rename(tmp_path / "x.bin")
    (tmp_path / "x.idx").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.idx: not an index"):
        open_indexed(tmp_path / "x")


SIDECAR = Sidecar(
    tokenizer="gpt2",
    tokenizer_hash="ab",
    vocab_size=50257,
    eod_token_id=50256,
    largest_token_id=9,
    dtype="uint16",
    documents=4,
    tokens=12,
    sources=(SourceFile(path="a.txt", num_bytes=30, documents=4),),
)


def test_a_sidecar_reads_back(tmp_path):
    assert Sidecar.read(tmp_path / "x") is None
    (tmp_path / "x.json").write_text(SIDECAR.to_json())
    assert Sidecar.read(tmp_path / "x") == SIDECAR
    SIDECAR.check_counts(tmp_path / "x", documents=4, tokens=12)
    with pytest.raises(DataError, match="one of them is another's"):
        SIDECAR.check_counts(tmp_path / "x", documents=5, tokens=12)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "cannot be read"),
        ("}", "damaged: it has no format"),
        (', "format": 3}', "format 3 is newer"),
        (', "format": 1}', "damaged: 'sources'"),
        (', "format": 1, "sources": [], "extra": 1}', "damaged"),
        (SIDECAR.to_json().partition('"gpt2"')[2].replace('"tokens": 12', '"tokens": "12"'), "its tokens is '12'"),
        (SIDECAR.to_json().partition('"gpt2"')[2].replace('_id": 9', '_id": null'), "its largest_token_id is None"),
    ],
)
def test_a_sidecar_that_is_none_is_refused(tmp_path, content, words):
    (tmp_path / "x.json").write_text('{\n  "tokenizer": "gpt2"' + content)
    with pytest.raises(DataError, match=words):
        Sidecar.read(tmp_path / "x")


def test_the_text_of_others_is_no_sidecar(tmp_path):
    (tmp_path / "x.json").write_text('{"text": "goose"}\n{"text": "honk"}\n')
    assert Sidecar.read(tmp_path / "x") is None


def test_names_with_dots_keep_them(tmp_path):
    assert idx_path(tmp_path / "wiki-1.0").name == "wiki-1.0.idx"
