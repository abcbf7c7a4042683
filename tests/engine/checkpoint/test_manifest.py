"""The manifest: what is written is read, and nothing that was changed, cut short or too new is taken."""

import json

import pytest

from gooseslo.engine.checkpoint.manifest import FileEntry, Manifest, Piece, TensorEntry, canonical_name
from gooseslo.errors import CheckpointError


def piece(*box, file="a.safetensors"):
    return Piece(file=file, key="w", box=box, offset=tuple(0 for _ in box))


def entry(*pieces, shape=(4, 6)):
    return TensorEntry(shape=shape, dtype="float32", pieces=pieces)


@pytest.fixture
def manifest():
    return Manifest(
        versions={"gooseslo": "0.1.0"},
        topology={"tp": 2, "pp": 1, "dp": 1},
        tensors={"w": entry(piece((0, 4), (0, 3)), piece((0, 4), (3, 6), file="b.safetensors"))},
        optimizer={"exp_avg/w": entry(piece((0, 4), (0, 6)))},
        tied={"head": "w"},
        files={"a.safetensors": FileEntry(bytes=3, sha256="0" * 64)},
    )


def test_round_trip(manifest, tmp_path):
    manifest.write(tmp_path)
    assert Manifest.read(tmp_path) == manifest


def test_any_change_is_noticed(manifest, tmp_path):
    manifest.write(tmp_path)
    path = tmp_path / "manifest.json"
    text = path.read_text()
    for old, new in [('"float32"', '"float64"'), ('"tp": 2', '"tp": 4'), ('"head": "w"', '"head": "v"')]:
        assert old in text
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(CheckpointError, match="digest"):
            Manifest.read(tmp_path)
    path.write_text(json.dumps(json.loads(text)))  # the same content in another layout is fine
    assert Manifest.read(tmp_path) == manifest


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"format"', "null"])
def test_broken(text, tmp_path):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="cannot be read"):
        Manifest.read(tmp_path)


def test_absent(tmp_path):
    with pytest.raises(CheckpointError, match=r"manifest\.json is absent"):
        Manifest.read(tmp_path)


def test_a_newer_format_is_refused_by_number(tmp_path):
    (tmp_path / "manifest.json").write_text('{"format": 2, "all": "different"}')
    with pytest.raises(CheckpointError, match=r"format 2.*reads format 1"):
        Manifest.read(tmp_path)


def test_sizes(manifest, tmp_path):
    with pytest.raises(CheckpointError, match=r"a\.safetensors is missing"):
        manifest.check_sizes(tmp_path)
    (tmp_path / "a.safetensors").write_bytes(b"1234")
    with pytest.raises(CheckpointError, match="4 bytes, the manifest says 3"):
        manifest.check_sizes(tmp_path)
    (tmp_path / "a.safetensors").write_bytes(b"123")
    manifest.check_sizes(tmp_path)
    with pytest.raises(CheckpointError, match="SHA-256"):
        manifest.check_content(tmp_path, "a.safetensors")


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([piece((0, 4), (0, 3))], "12 of its 24"),
        ([piece((0, 4), (0, 4)), piece((0, 4), (3, 6), file="b")], "both hold"),
        ([piece((0, 4), (0, 7))], "outside"),
        ([piece((0, 4))], "outside"),
        ([], "0 of its 24"),
    ],
)
def test_pieces_cover_a_tensor_exactly_once(pieces, words):
    with pytest.raises(CheckpointError, match=words):
        entry(*pieces).check_cover("w")


def test_scalars_are_covered_by_one_piece():
    entry(piece(), shape=()).check_cover("step")
    with pytest.raises(CheckpointError, match="both hold"):
        entry(piece(), piece(file="b"), shape=()).check_cover("step")


def test_aliases_resolve_behind_an_optimizer_prefix_too():
    tied = {"lm_head.weight": "wte.weight"}
    assert canonical_name("lm_head.weight", tied) == "wte.weight"
    assert canonical_name("exp_avg/lm_head.weight", tied) == "exp_avg/wte.weight"
    assert canonical_name("h.0.weight", tied) == "h.0.weight"
