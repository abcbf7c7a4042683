"""Which ranks share a machine and its cores, and what is left of a rank whose launch is gone."""

import json
import os
import socket

import pytest

from gooseslo.engine import roster
from gooseslo.engine.adopted_rank import AdoptedDuties
from gooseslo.engine.place import find_place
from gooseslo.engine.worker import Duties, threads_wanted


def stranger(folder, rank, **changes):
    """A member like this process, but for the changes; its process number is one that is not there."""
    roster.sign_in(folder, rank)
    path = folder / f"member-{rank}"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": 2**22 + 1} | changes))


def test_a_machine_is_more_than_its_name(tmp_path):
    """Containers may all be called localhost; a process number counts in one of them."""
    stranger(tmp_path, 0)
    stranger(tmp_path, 1, machine="another")
    assert [member.rank for member in roster.dead(tmp_path)] == [0]
    assert [member.host for member in roster.members(tmp_path)] == [socket.gethostname()] * 2
    assert not Duties(0, tmp_path).has_failed_peer() and Duties(1, tmp_path).has_failed_peer()


def test_cores_are_shared_by_those_that_may_use_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    roster.sign_in(tmp_path, 0)
    assert roster.share_of_cores(tmp_path) == 8
    stranger(tmp_path, 1)
    assert roster.share_of_cores(tmp_path) == 4
    stranger(tmp_path, 2, machine="another")
    stranger(tmp_path, 3, cores=list(range(8, 16)))  # bound to a share of its own, as by srun
    assert roster.share_of_cores(tmp_path) == 4


@pytest.mark.parametrize(
    ("set_to", "by_torchrun", "wanted"),
    [(None, False, 0), ("1", False, 1), ("1", True, 0), ("3", True, 3), ("4,2", False, 0)],
)
def test_the_users_number_of_threads_counts_but_not_torchruns(set_to, by_torchrun, wanted):
    environment = {"OMP_NUM_THREADS": set_to} if set_to else {}
    assert threads_wanted(environment, by_torchrun=by_torchrun) == wanted


def test_only_torchruns_ranks_doubt_it():
    ranks = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    agent = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert AdoptedDuties(find_place(ranks | agent)).by_torchrun
    assert not AdoptedDuties(find_place(ranks)).by_torchrun and not Duties(0).by_torchrun


def test_a_failure_that_cannot_be_written_down_is_still_one(tmp_path, capsys):
    found = Duties(1, tmp_path / "gone").fail(ValueError("reed 17"))
    assert found.message == "reed 17" and "reed 17" in capsys.readouterr().err
