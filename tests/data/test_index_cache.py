"""The index cache: built once on a machine, never half there, never trusted when it is not what it should be."""

import logging
import multiprocessing
import os
import time

import numpy as np
import pytest
from indexed_fixtures import numbered, write_prefix

from gooseslo.data import DatasetForCausalLM
from gooseslo.data.indexed import index_cache
from gooseslo.data.indexed.index_cache import IndexCache


def build_slowly(folder, log, seconds, queue):
    """What a rank does at its start: ask for the array; the builder takes its time, and writes down that it ran."""

    def build():
        with log.open("a") as file:
            file.write("built\n")
        time.sleep(seconds)
        return np.arange(1000)

    queue.put(IndexCache(folder).array(["facts"], build, stamp=0, shape=(1000,), label="x").tolist())


@pytest.mark.parametrize("apart", [0.0, 0.3])
def test_four_processes_and_an_empty_cache(tmp_path, apart):
    """All start at once, or while the first is at it: one builds, all have the same, the file is never half there."""
    context = multiprocessing.get_context("fork")
    queue, folder = context.Queue(), tmp_path / "cache"
    processes = [context.Process(target=build_slowly, args=(folder, tmp_path / "log", 1.0, queue)) for _ in range(4)]
    for process in processes:
        process.start()
        time.sleep(apart)
    seen = set()
    while any(process.is_alive() for process in processes) and queue.qsize() < 4:
        seen |= {(path.name, path.stat().st_size) for path in folder.glob("*.npy")} if folder.exists() else set()
        time.sleep(0.01)
    results = [queue.get(timeout=20) for _ in processes]
    for process in processes:
        process.join(20)
        assert process.exitcode == 0
    assert results == [list(range(1000))] * 4
    assert (tmp_path / "log").read_text() == "built\n"
    seen |= {(path.name, path.stat().st_size) for path in folder.glob("*.npy")}
    assert len(seen) == 1 and not list(folder.glob("*.tmp*"))


def test_what_a_killed_builder_leaves_neither_blocks_nor_counts(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=build_slowly, args=(tmp_path, tmp_path / "log", 60, queue))
    process.start()
    while not (tmp_path / "log").exists():
        assert process.is_alive()
        time.sleep(0.01)
    process.kill()
    process.join()
    assert IndexCache(tmp_path).array(["facts"], lambda: np.arange(1000), stamp=0, shape=(1000,), label="x")[-1] == 999


def cut(path):
    path.write_bytes(path.read_bytes()[:-8])


def empty(path):
    path.write_bytes(b"")


def foreign(path):
    np.save(path, np.zeros_like(np.load(path)))


def of_other_numbers(path):
    np.save(path, np.load(path).astype(np.float64))


def of_another_key(path):
    data = np.load(path)
    data[:4] += 1
    np.save(path, data)


@pytest.mark.parametrize("harm", [cut, empty, foreign, of_other_numbers, of_another_key])
def test_a_damaged_or_foreign_file_is_made_anew(tmp_path, harm):
    prefix = write_prefix(tmp_path / "a", numbered([7] * 40))
    before = DatasetForCausalLM(prefix, 279).tokens(0)
    (path,) = (tmp_path / "a.cache").glob("*.npy")
    whole = path.read_bytes()
    harm(path)
    assert np.array_equal(DatasetForCausalLM(prefix, 279).tokens(0), before)
    assert path.read_bytes() == whole


def test_the_name_depends_on_all_that_the_array_depends_on(tmp_path):
    documents = numbered([7] * 40)
    prefix = write_prefix(tmp_path / "a", documents)

    def tokens(**options):
        return set(DatasetForCausalLM(prefix, 6, **options).tokens(0).tolist())

    # the seeds' fault: the same split_type with another range gave the old range's samples
    first = tokens(split_type="valid", start_weight=0.0, end_weight=0.5)
    second = tokens(split_type="valid", start_weight=0.5, end_weight=1.0)
    assert max(first) < 140 <= min(second)
    tokens(seed=1)
    assert len(list((tmp_path / "a.cache").glob("*.npy"))) == 3
    time.sleep(0.02)  # a file system's clock may tick in hundredths
    write_prefix(tmp_path / "a", documents[::-1])
    DatasetForCausalLM(prefix, 6).tokens(0)
    assert len(list((tmp_path / "a.cache").glob("*.npy"))) == 1  # what is known of the old files is of no more use


def test_of_many_epochs_the_newest_are_kept(tmp_path, monkeypatch):
    """A long run over a large set asks for each once; what it has mapped stays readable."""
    monkeypatch.setattr(index_cache, "_KEPT", 4)
    cache, arrays = IndexCache(tmp_path), []
    cache.array(["ids"], lambda: np.arange(3), stamp=1, shape=(3,), label="ids")
    for epoch in range(10):
        arrays.append(cache.array([epoch], lambda epoch=epoch: np.arange(3) + epoch, stamp=1, shape=(3,), label="x"))
        path = max(tmp_path.glob("x-*.npy"), key=lambda path: path.stat().st_mtime_ns)
        os.utime(path, ns=(epoch, epoch))  # a file system's clock may tick in hundredths
    assert [array[0] for array in arrays] == list(range(10))
    assert sorted(path.stat().st_mtime_ns for path in tmp_path.glob("x-*.npy")) == [6, 7, 8, 9]
    assert len(list(tmp_path.glob("ids-*.npy"))) == 1


def test_it_is_read_and_not_built_again(tmp_path, monkeypatch):
    prefix = write_prefix(tmp_path / "a", numbered([7] * 40))
    before = DatasetForCausalLM(prefix, 279).tokens(0)
    monkeypatch.setattr(DatasetForCausalLM, "_lay_out", lambda self, block, shape: pytest.fail("built again"))
    assert np.array_equal(DatasetForCausalLM(prefix, 279).tokens(0), before)


def test_a_small_set_begun_again_often_leaves_few_files(tmp_path):
    dataset = DatasetForCausalLM(write_prefix(tmp_path / "a", numbered([7] * 10)), 60)
    for epoch in range(500):
        dataset.tokens(epoch * len(dataset))
    assert len(list((tmp_path / "a.cache").glob("*.npy"))) == 2


def test_a_folder_that_cannot_be_written(tmp_path, caplog):
    """One warning, and the same samples."""
    prefix = write_prefix(tmp_path / "a", numbered([7] * 40))
    expected = DatasetForCausalLM(prefix, 279).tokens(0)
    (tmp_path / "a.cache").rename(tmp_path / "gone")
    (tmp_path / "a.cache").write_text("a file is in the way")  # root may write anywhere
    with caplog.at_level(logging.WARNING):
        dataset = DatasetForCausalLM(prefix, 279)
        assert np.array_equal(dataset.tokens(0), expected)
        dataset.tokens(10**6)
    assert len(caplog.records) == 1 and "a.cache" in caplog.text and "File exists" in caplog.text


def test_a_full_disk_is_a_warning(tmp_path, caplog, monkeypatch):
    def full(path, *args):
        path.write_bytes(b"half of it")
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("gooseslo.data.indexed.index_cache._write", full)
    cache = IndexCache(tmp_path)
    assert cache.array(["x"], lambda: np.arange(3), stamp=0, shape=(3,), label="x").tolist() == [0, 1, 2]
    assert "No space left" in caplog.text and [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_files_that_take_the_place_of_those_in_use_are_not_taken_for_them(tmp_path):
    """A run that has the old files open works out its next epoch when others have their names already."""
    old = write_prefix(tmp_path / "a", numbered([5, 9, 7] * 4))
    in_use = DatasetForCausalLM(old, 20, seed=1)
    for name in ("new", "alone"):
        write_prefix(tmp_path / name, numbered([9, 7, 5] * 4))
    for suffix in (".bin", ".idx"):
        (tmp_path / f"new{suffix}").replace(tmp_path / f"a{suffix}")
    in_use.tokens(0)
    new, alone = (DatasetForCausalLM(prefix, 20, seed=1) for prefix in (old, tmp_path / "alone"))
    assert [new.tokens(number).tolist() for number in range(4)] == [
        alone.tokens(number).tolist() for number in range(4)
    ]
