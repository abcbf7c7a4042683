"""Who hears whom in the store of adopted ranks, and how a rank ends: threads in place of processes."""

import dataclasses
import datetime
import socket
import threading

import pytest
import torch
import torch.distributed as dist

from gooseslo.engine import adopt, meeting
from gooseslo.engine.adopted_rank import SaidElsewhere
from gooseslo.engine.interrupt import Interrupted
from gooseslo.engine.meeting import Meeting
from gooseslo.engine.place import Place
from gooseslo.errors import ConfigError, DataError
from gooseslo.schema.compose import compose_train


@pytest.fixture
def place():
    """Of rank 0 of two, at a free port."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    sizes = {"rank": 0, "local_rank": 0, "world_size": 2, "local_size": 2}
    return Place(**sizes, host="localhost", port=port, starter="slurm", attempt="41.0.")


@pytest.fixture
def soon(monkeypatch):
    """Have nobody wait long in vain."""
    monkeypatch.setattr(meeting, "_MEET_SECONDS", 0.5)
    monkeypatch.setattr(meeting, "_PREPARING", datetime.timedelta(seconds=0.5))


def other(place, **changes):
    return Meeting(dataclasses.replace(place, rank=1, local_rank=1, **changes))


def test_an_attempt_hears_nothing_of_the_one_before_it(place, soon):
    """The store is the launcher's, and lives on."""
    agents = dist.TCPStore("localhost", place.port, is_master=True, wait_for_workers=False)
    first = dataclasses.replace(place, starter_listens=True, attempt="job.0")
    Meeting(first).tell("the first attempt's work")
    again = dataclasses.replace(first, attempt="job.1")
    leader = Meeting(again)
    follower = other(again)
    with pytest.raises(dist.DistError):
        follower.hear()
    leader.tell("the second's")
    assert follower.hear() == "the second's"
    del agents


def test_ranks_of_another_job_are_no_part_of_it(place, soon):
    leader = Meeting(place)
    with pytest.raises(dist.DistError):
        other(place, attempt="1097.0.")
    leader.tell("work")
    assert other(place).hear() == "work"


def test_a_taken_port_is_a_fault_that_names_it(place):
    with socket.socket() as taken:
        taken.bind(("", place.port))
        taken.listen()
        with pytest.raises(ConfigError, match=f"MASTER_PORT={place.port}: another program listens"):
            Meeting(place)


@pytest.fixture
def ended(monkeypatch):
    """Exit codes that ranks would have ended with."""
    codes = []

    def leave(code):
        codes.append(code)
        raise SystemExit

    monkeypatch.setattr(adopt, "_leave", leave)
    return codes


def test_rank_0_can_be_reached_before_it_composes_and_ends_the_others_as_it_ends(place, soon, ended):
    heard, said = [], []

    def follow():
        follower = other(place)
        heard.append(follower.hear())
        follower.acknowledge()

    follower = threading.Thread(target=follow)

    def compose(leader):
        other(place)  # waits only so long
        follower.start()
        raise DataError("no such file")

    with pytest.raises(SystemExit):
        adopt.lead(place, compose, lambda error: said.append(str(error)))
    follower.join()
    assert (heard, said, ended) == ([2], ["no such file"], [2])


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (SaidElsewhere(2), 2, None),
        (DataError("no such file"), 2, "no such file"),
        (dist.DistNetworkError("refused"), 1, "rank 0 does not listen at localhost:"),
        (FileNotFoundError("member-1"), 1, None),
    ],
)
def test_each_rank_ends_by_the_same_rules(error, code, words, rank, place, ended, capsys):
    said = []

    def fail():
        raise error

    with pytest.raises(SystemExit):
        adopt._ended(dataclasses.replace(place, rank=rank), fail, lambda error: said.append(str(error)))
    assert ended == [code] and len(said) == (words is not None)
    assert not said or words in said[0]
    assert ("Traceback" in capsys.readouterr().err) == isinstance(error, FileNotFoundError)


def test_of_an_interruption_only_rank_0_speaks(place, ended):
    said = []

    def stop():
        raise Interrupted(15, stopped=True)

    for rank in (1, 0):
        with pytest.raises(SystemExit):
            adopt._ended(dataclasses.replace(place, rank=rank), stop, said.append)
        assert len(said) == (rank == 0)
    assert ended == [143, 143]


def test_more_ranks_than_devices_are_refused_unless_each_sees_one(place, monkeypatch):
    leader = adopt.Leader(dataclasses.replace(place, world_size=4, local_size=4), None)
    for devices, device in [(0, "auto"), (1, "auto"), (4, "auto"), (2, "cpu")]:
        monkeypatch.setattr(torch.cuda, "device_count", lambda devices=devices: devices)
        assert leader.sized(compose_train([f"device={device}"])).launcher.workers == 4
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="slurm started 4 ranks on this machine, which has 2 CUDA devices"):
        leader.sized(compose_train(["device=cuda"]))
