"""One folder per run: its name, its lock, and the files that say what the run is."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gooseslo.engine.run_folder import LOGS, describe_environment, open_run_folder
from gooseslo.errors import ConfigError
from gooseslo.staging import write_text

NOW = datetime.datetime(2026, 3, 4, 5, 6, 7)


def open_folder(root, name=None, directory=None):
    return open_run_folder(name=name, directory=directory, model_name="gpt2", now=NOW, root=root)


def test_runs_of_one_second_get_a_folder_each(tmp_path):
    paths = [open_folder(tmp_path / "runs").path.name for _ in range(3)]
    assert paths == ["gpt2-20260304-050607", "gpt2-20260304-050607-2", "gpt2-20260304-050607-3"]


def test_a_named_folder_is_made_and_then_continued(tmp_path):
    first = open_folder(tmp_path, name="a")
    assert first.path == tmp_path / "a"
    assert (first.path / LOGS).is_dir() and first.checkpoints.is_dir()
    first.close()
    second = open_folder(tmp_path, name="a")
    assert second.path == first.path


def test_a_directory_wins_over_the_name_and_is_made_with_its_parents(tmp_path):
    assert open_folder(tmp_path / "runs", name="a", directory=str(tmp_path / "x" / "y")).path == tmp_path / "x" / "y"
    assert not (tmp_path / "runs").exists()


def test_a_relative_folder_is_the_callers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    open_folder(Path("runs"), name="a").close()
    assert (tmp_path / "runs" / "a").is_dir()


def test_a_live_runs_folder_is_refused_until_it_ends(tmp_path):
    live = open_folder(tmp_path, name="a")
    with pytest.raises(ConfigError, match=r"run\.name=a: another live run") as caught:
        open_folder(tmp_path, name="a")
    assert len(str(caught.value).splitlines()) <= 5
    live.close()
    open_folder(tmp_path, name="a").close()


def test_the_lock_goes_with_a_process_that_is_killed(tmp_path):
    code = (
        "import datetime, os, pathlib, signal; from gooseslo.engine.run_folder import open_run_folder\n"
        "open_run_folder(name='a', directory=None, model_name='m', now=datetime.datetime.now(), "
        f"root=pathlib.Path({str(tmp_path)!r}))\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == -9
    assert open_folder(tmp_path, name="a").path == tmp_path / "a"


def test_what_is_no_run_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("")
    for name, rule in [("file", "is a file"), ("photos", "is not a run"), ("file/x", "cannot be made|is a file")]:
        with pytest.raises(ConfigError, match=rule):
            open_folder(tmp_path, name=name)
    assert os.listdir(tmp_path / "photos") == ["cat.jpg"]


def test_the_files_that_say_what_the_run_is(tmp_path):
    folder = open_folder(tmp_path, name="a")
    environment = describe_environment(["gooseslo", "train", "run.name=a b"], NOW)
    folder.describe(
        config_yaml="run:\n  name: a\n", overrides=["run.name=a"], plan="two stages", environment=environment
    )
    assert (folder.path / "config.yaml").read_text() == "run:\n  name: a\n"
    assert (folder.path / "overrides.txt").read_text() == "run.name=a\n"
    assert (folder.path / "plan.txt").read_text() == "two stages\n"
    read = json.loads((folder.path / "environment.json").read_text())
    assert read["command"] == ["gooseslo", "train", "run.name=a b"]
    assert read["versions"]["torch"] and read["host"] and read["started"].startswith("2026-03-04T05:06:07")


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = tmp_path / "latest"
    write_text(path, "old")
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_text(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
