"""Saves that are killed, fail or repeat: what looks like a checkpoint is one, and the last good one stays."""

import multiprocessing
import os
import resource
import shutil
import signal
from collections import namedtuple

import pytest
import torch

from gooseslo.engine.checkpoint import folders as folders_module
from gooseslo.engine.checkpoint import save as save_module
from gooseslo.engine.checkpoint.folders import Retention, find_latest, is_complete, read_state, step_folders
from gooseslo.engine.checkpoint.load import load_tensors
from gooseslo.engine.checkpoint.save import Coordinates, LocalState, save_step
from gooseslo.errors import CheckpointError
from gooseslo.parallel.tensor.layouts import whole


def save(checkpoints, step, *, value=0.0, size=8, rank=0, **options):
    local = LocalState(tensors={f"w{rank}": (torch.full((size,), value), whole((size,)))})
    at = Coordinates(tp=rank)
    topology = {"tp": 1, "pp": 1, "dp": 1}
    return save_step(checkpoints, step, local=local, coordinates=at, topology=topology, state={"step": step}, **options)


def value_of(folder):
    tensor = torch.empty(8)
    load_tensors(folder, {"w0": (tensor, whole((8,)))})
    return tensor[0].item()


def in_child(target):
    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    process.join(60)
    return process.exitcode


def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("module", "function"),
    [
        (save_module, "_write_shares"),
        (save_module, "file_entry"),
        (save_module, "_manifest"),
        (save_module, "publish_step"),
        (folders_module, "publish"),
        (folders_module, "write_text"),
        (save_module, "prune"),
    ],
)
def test_a_killed_save_leaves_a_checkpoint_that_loads(run_dir, module, function):
    checkpoints = run_dir / "checkpoints"
    save(checkpoints, 5, value=5.0)

    def killed():
        setattr(module, function, die)
        save(checkpoints, 10, value=10.0)

    assert in_child(killed) == -signal.SIGKILL
    renamed = function in ("write_text", "prune")
    assert list(step_folders(checkpoints)) == ([5, 10] if renamed else [5])
    newest = find_latest(run_dir)
    assert value_of(newest) == (10.0 if function == "prune" else 5.0)
    assert value_of(save(checkpoints, 10, value=11.0)) == 11.0
    assert find_latest(run_dir).name == "step-00000010"
    assert sorted(os.listdir(checkpoints)) == ["latest", "step-00000005", "step-00000010"]


@pytest.mark.parametrize("function", ["publish", "write_text"])
def test_saving_a_step_again_never_loses_both(run_dir, function):
    checkpoints = run_dir / "checkpoints"
    save(checkpoints, 5, value=1.0)

    def killed():
        setattr(folders_module, function, die)
        save(checkpoints, 5, value=2.0)

    assert in_child(killed) == -signal.SIGKILL
    assert value_of(find_latest(run_dir)) == (1.0 if function == "publish" else 2.0)
    assert save(checkpoints, 7) and list(step_folders(checkpoints)) == [5, 7]
    assert value_of(save(checkpoints, 5, value=3.0)) == 3.0
    assert sorted(os.listdir(checkpoints)) == ["latest", "step-00000005", "step-00000007"]


def test_find_latest(run_dir):
    checkpoints = run_dir / "checkpoints"
    assert find_latest(run_dir) is None and find_latest(run_dir / "absent") is None
    for step in (2, 10, 9):
        save(checkpoints, step)
    assert find_latest(run_dir).name == "step-00000009"  # resumed from 2: the abandoned step 10 is not newest
    shutil.copytree(checkpoints / "step-00000010", checkpoints / "step-00000011")
    (checkpoints / "step-00000011" / "manifest.json").unlink()
    manifest = checkpoints / "step-00000009" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("float32", "float64"))
    assert find_latest(run_dir).name == "step-00000010"
    (checkpoints / "step-00000010" / "model_tp=0_pp=0.safetensors").write_bytes(b"stump")
    assert find_latest(run_dir).name == "step-00000002"
    (checkpoints / "latest").write_text("../../elsewhere\n")
    assert find_latest(run_dir).name == "step-00000002"


def test_steps_sort_by_number(run_dir):
    checkpoints = run_dir / "checkpoints"
    for step in (99_999_999, 100_000_000):
        save(checkpoints, step)
    (checkpoints / "latest").unlink()
    assert find_latest(run_dir).name == "step-100000000"


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (Retention(keep=0), [1, 2, 3, 4, 5, 6, 7]),
        (Retention(keep=1), [7]),
        (Retention(keep=3), [5, 6, 7]),
        (Retention(keep=2, keep_every=3), [3, 6, 7]),
    ],
)
def test_retention(run_dir, retention, kept):
    for step in range(1, 8):
        save(run_dir / "checkpoints", step, retention=retention)
    assert list(step_folders(run_dir / "checkpoints")) == kept
    assert not [name for name in os.listdir(run_dir / "checkpoints") if name.startswith(".")]


def test_an_abandoned_course_is_not_touched_and_the_new_step_stays(run_dir):
    checkpoints = run_dir / "checkpoints"
    for step, keep in ((20, 2), (30, 2), (5, 1), (15, 1)):
        save(checkpoints, step, retention=Retention(keep=keep))
    assert list(step_folders(checkpoints)) == [15, 20, 30] and find_latest(run_dir).name == "step-00000015"


def test_state_is_kept_and_a_broken_one_is_said(run_dir):
    folder = save(run_dir / "checkpoints", 3)
    assert read_state(folder) == {"step": 3}
    (folder / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"state\.json"):
        read_state(folder)
    assert not is_complete(folder)


def test_a_full_disk_is_seen_beforehand_with_the_numbers(run_dir, monkeypatch):
    checkpoints = run_dir / "checkpoints"
    save(checkpoints, 5, value=5.0)
    usage = namedtuple("usage", "free")(free=2_000_000)
    monkeypatch.setattr(save_module.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(CheckpointError, match=r"00010: not saved: .* 4000000 bytes are needed, 2000000 are free"):
        save(checkpoints, 10, size=1_000_000, retention=Retention(keep=1))
    assert sorted(os.listdir(checkpoints)) == ["latest", "step-00000005"]
    assert value_of(find_latest(run_dir)) == 5.0


def test_a_write_that_fails_on_one_rank_fails_on_all(run_dir, run_ranks):
    checkpoints = run_dir / "checkpoints"
    save(checkpoints, 5, value=5.0)

    def rank_main(rank):
        if rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        save(checkpoints, 10, size=100_000, rank=rank)

    errors = run_ranks(rank_main, 3, errors=True)
    assert all("step-00000010" in error and "File too large" in error for error in errors)
    assert errors[1].startswith("SaveError")
    assert all(errors[rank].startswith("PeerSaveError") and "rank 1: " in errors[rank] for rank in (0, 2))
    assert sorted(os.listdir(checkpoints)) == ["latest", "step-00000005"]


def test_a_failing_writer_of_common_files_fails_on_all(run_dir, run_ranks):
    def write_common(folder):
        raise RuntimeError("no config")

    def rank_main(rank):
        save(run_dir / "checkpoints", 10, rank=rank, write_common=write_common)

    errors = run_ranks(rank_main, 2, errors=True)
    assert all("no config" in error for error in errors)
    assert os.listdir(run_dir / "checkpoints") == []


def test_a_tensor_with_a_part_missing_is_not_saved(run_dir):
    placement = whole((4, 4))
    half = type(placement)(full_shape=(8, 4), boxes=(((0, 4), (0, 4)),), dim=0)
    with pytest.raises(CheckpointError, match="w: the files hold 16 of its 32 elements"):
        save_step(
            run_dir / "checkpoints",
            1,
            local=LocalState(tensors={"w": (torch.zeros(4, 4), half)}),
            coordinates=Coordinates(),
            topology={},
            state={},
        )
    assert os.listdir(run_dir / "checkpoints") == []
