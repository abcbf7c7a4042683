"""What `data=indexed` names: found, whole, of one tokenizer, within the model's table; and known again after a stop."""

import hashlib
import re

import numpy as np
import pytest
from indexed_fixtures import numbered, write_prefix, write_sidecar

from gooseslo.data.indexed.mixture import Mixture, evaluation_warnings, open_split
from gooseslo.errors import DataError

DOCUMENTS = [np.array(document) for document in ([1, 2, 3, 0], [9, 0], [4, 5, 6, 7, 8, 0])]


@pytest.fixture
def folder(tmp_path):
    write_prefix(tmp_path / "a", DOCUMENTS)
    write_prefix(tmp_path / "b", numbered([5] * 20))
    return tmp_path


def mixture(folder, **splits):
    return Mixture(base_dir=folder, **splits)


def test_a_path_a_list_and_the_names_of_its_files(folder):
    for value in ("a", ["a"], "a.bin", "a.idx", [{"path": "a"}], {"path": "a.idx", "weight": None}):
        (part,) = mixture(folder, train=value).splits["train"]
        assert part.prefix == folder / "a" and part.key == (
            "data.train[0]" if isinstance(value, list) else "data.train"
        )


def test_the_parts_of_a_split_are_blended(folder):
    parts = mixture(folder, train=[{"path": "a", "weight": 1}, {"path": "b", "weight": 3}]).splits["train"]
    blender = open_split(parts, 2)
    assert blender.turns.shares == (1, 3) and blender.sizes == [5, 49]
    assert open_split(mixture(folder, train=["a", "b"]).splits["train"], 2).turns.shares == (5, 49)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (["a", "c"], r"data.train\[1\]: .*c.idx: no such file"),
        (["a", "short"], r"data.train\[1\]: .*short.bin: cut short"),
    ],
)
def test_files_that_are_not_there_or_not_whole(folder, train, words):
    write_prefix(folder / "short", DOCUMENTS)
    (folder / "short.bin").write_bytes((folder / "short.bin").read_bytes()[:-2])
    with pytest.raises(DataError, match=words):
        mixture(folder, train=train)


def test_files_of_two_tokenizers(folder):
    write_sidecar(folder / "a", DOCUMENTS)
    mixture(folder, train=["a", "b"])  # of b's nothing is known
    write_sidecar(folder / "b", numbered([5] * 20), tokenizer_hash="1" * 64, tokenizer="other")
    with pytest.raises(DataError, match=r"data.valid: .*b was made with another tokenizer \(other\) than data.train"):
        mixture(folder, train="a", valid="b")


def test_the_name_of_a_tokenizer_begins_at_the_file_that_has_one(folder):
    """The first file may be another tool's, in another folder."""
    (folder / "deep").mkdir()
    write_prefix(folder / "deep" / "c", DOCUMENTS)
    write_sidecar(folder / "deep" / "c", DOCUMENTS)
    found = mixture(folder, train=["a", "deep/c"])
    assert found.sidecar.tokenizer == "nowhere/at-all" and found.tokenizer_folders == (folder / "deep",)


def test_a_sidecar_of_other_files(folder):
    write_sidecar(folder / "a", DOCUMENTS, documents=4)
    with pytest.raises(DataError, match=r"data.train: .*a.json: speaks of 4 documents"):
        mixture(folder, train="a")


def test_an_empty_held_out_split_is_named_with_all_counts(folder):
    """3 documents at 9998, 1 and 1: nothing is left for the held-out splits."""
    ranges = {"valid": [{"path": "a", "start": 0.9998, "end": 0.9999}], "test": {"path": "a", "start": 0.9999}}
    found = mixture(folder, train={"path": "a", "end": 0.9998}, **ranges)
    with pytest.raises(DataError) as error:
        found.check_samples(["train", "valid"], 2)
    assert str(error.value).startswith("data.valid[0]: 0 of the 3 documents")
    assert str(error.value).endswith("documents: train 3, valid 0, test 0")
    assert len(str(error.value).splitlines()) <= 5
    found.check_samples(["train"], 2)


def test_token_ids_beyond_the_table(folder):
    mixture(folder, train="a").check_token_ids(10)
    with pytest.raises(DataError, match=r"data.train: the largest token id in .*a is 9, .*vocab_size=9\n.*=10 or more"):
        mixture(folder, train="a").check_token_ids(9)
    write_sidecar(folder / "a", DOCUMENTS, largest_token_id=50)  # believed, and so nothing is read
    with pytest.raises(DataError, match="is 50, "):
        mixture(folder, train="a").check_token_ids(50)


def test_a_file_is_looked_through_once(folder):
    said = []
    for _ in range(2):
        mixture(folder, train="a").check_token_ids(10, say=said.append)
    mixture(folder, train="a").check_token_ids(1 << 16, say=said.append)  # no 16-bit number is beyond it
    assert len(said) == 1 and (folder / "a.cache").is_dir()


def test_negative_numbers_are_no_token_ids(folder):
    write_prefix(folder / "n", [[1, -2, 3]], "int16")
    with pytest.raises(DataError, match=r"n.bin: holds negative numbers \(-2\)"):
        mixture(folder, train="n").check_token_ids(10)


def test_documents_that_are_trained_on_and_held_out(folder):
    parts = [{"path": "b", "end": 0.9}, "a"]
    assert not list(mixture(folder, train=parts, valid={"path": "b", "start": 0.9}).overlaps())
    (words,) = mixture(folder, train=parts, valid=[{"path": "b", "start": 0.8}]).overlaps()
    assert words == "data.valid[0]: 2 of its 4 documents are data.train[0]'s too"


def test_identity_sees_every_token_of_files_that_have_a_hash(tmp_path):
    """One token of a million, far from every probe: text that was edited and prepared anew."""
    documents = numbered([1000] * 1000)
    documents = [document % 50_000 for document in documents]
    found = set()
    for edited in (False, True):
        documents[505][77] = 1 if edited else 2
        write_prefix(tmp_path / "a", documents)
        found.add(mixture(tmp_path, train="a").identity())
    assert len(found) == 1  # of probes alone
    for edited in (False, True):
        documents[505][77] = 1 if edited else 2
        write_prefix(tmp_path / "a", documents)
        tokens_sha256 = hashlib.sha256((tmp_path / "a.bin").read_bytes()).hexdigest()
        write_sidecar(tmp_path / "a", documents, format=2, tokens_sha256=tokens_sha256)
        found.add(mixture(tmp_path, train="a").identity())
    assert len(found) == 3


def test_identity_of_older_files_stays(folder):
    """Runs that began before there was a hash go on."""
    write_sidecar(folder / "a", DOCUMENTS)
    assert mixture(folder, train="a").identity() == OLDER


OLDER = "c23a90a2dcd391352c584cc001bef5424a3f504c4a86886edb0702ad19e72e66"


def test_identity_is_of_the_content(folder, tmp_path_factory):
    before = mixture(folder, train="a").identity()
    elsewhere = tmp_path_factory.mktemp("copy")
    write_prefix(elsewhere / "renamed", DOCUMENTS)
    assert mixture(elsewhere, train="renamed").identity() == before
    others = [{"path": "a", "end": 0.9}, {"path": "a", "weight": 2}, "b", ["a", "a"]]
    found = {mixture(folder, train=value).identity() for value in others}
    write_prefix(folder / "a", [DOCUMENTS[0][::-1], *DOCUMENTS[1:]])  # of the same sizes
    found.add(mixture(folder, train="a").identity())
    assert len(found | {before}) == len(others) + 2


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ((None, None), []),
        ((5, 49), []),
        (
            (0.5, 0.5),
            [
                r"data.valid\[0\]: an evaluation has 10 of the 54 samples held out: by weight it ends where a would "
                "begin again; without weights it has all of them"
            ],
        ),
        ((0, 1), [r"data.valid\[1\]: an evaluation has 49 of", r"data.valid\[0\]: weight=0 of a gives none of the 49"]),
    ],
)
def test_what_an_evaluation_leaves_out_is_said(folder, weights, words):
    given = [{"path": name, "weight": weight} for name, weight in zip("ab", weights)]
    parts = mixture(folder, train="a", valid=given).splits["valid"]
    found = list(evaluation_warnings(parts, open_split(parts, 2), at_most=60))
    assert len(found) == len(words) and all(re.match(*pair) for pair in zip(words, found)), found
    (single,) = mixture(folder, train="a").splits["train"]
    assert not list(evaluation_warnings((single,), open_split((single,), 2), at_most=60))
