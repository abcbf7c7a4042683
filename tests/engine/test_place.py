"""Which environments make a process a rank that was started by somebody else, and which."""

from dataclasses import replace

import pytest

from gooseslo.engine.place import check_launcher, find_place, first_host
from gooseslo.errors import ConfigError
from gooseslo.schema.compose import compose_train
from gooseslo.schema.topology import check_topology

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
BATCH = {"SLURM_JOB_ID": "41", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4", "SLURM_NODEID": "0"}
BATCH |= {"SLURM_JOB_NODELIST": "gpu[07-08]", "SLURM_TASKS_PER_NODE": "2(x2)"}
STEP = {"SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "gpu[07-08]"}
STEP = BATCH | STEP | {"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}


def test_torchrun_and_deepspeed():
    place = find_place(TORCHRUN)
    assert (place.rank, place.local_rank, place.world_size, place.local_size) == (3, 1, 4, 2)
    assert (place.host, place.port, place.starter) == ("node7", 29500, "torchrun")
    assert place.starter_listens and place.ends_with_parent
    assert place.command == (), "there is another machine, and nobody knows how torchrun was called"
    alone = find_place(TORCHRUN | {"WORLD_SIZE": "2", "RANK": "1"})
    assert " ".join(alone.command) == "torchrun --nproc-per-node=2 -m gooseslo train"
    deepspeed = {key: value for key, value in TORCHRUN.items() if not key.startswith(("TORCHELASTIC", "LOCAL_W"))}
    place = find_place(deepspeed | {"LOCAL_SIZE": "2", "CROSS_RANK": "0"})
    assert place.local_size == 2 and not place.starter_listens and place.ends_with_parent and place.command == ()


def test_each_attempt_has_a_name_of_its_own():
    restarts = [find_place(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": count}).attempt for count in "01"]
    requeued = [find_place(STEP | change).attempt for change in ({}, {"SLURM_RESTART_COUNT": "1"})]
    # both have the same port
    jobs = [
        find_place(STEP | {"SLURM_JOB_ID": job, "SLURM_STEP_ID": step}) for job, step in (("1000", "1"), ("1097", "0"))
    ]
    assert len({job.port for job in jobs}) == 1
    assert len({*restarts, *requeued, *(job.attempt for job in jobs)}) == 6


def test_a_step_of_several_tasks():
    place = find_place(STEP)
    assert (place.rank, place.local_rank, place.world_size, place.local_size) == (3, 1, 4, 2)
    assert (place.host, place.starter, place.starter_listens) == ("gpu07", "slurm", False)
    assert " ".join(place.command) == "srun -n 4 gooseslo train"
    assert 1024 < place.port < 32768 and place.port != find_place(STEP | {"SLURM_STEP_ID": "2"}).port
    given = find_place(STEP | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"})
    assert (given.host, given.port) == ("10.0.0.1", 4000)


def test_torchrun_inside_a_step_counts_more_than_the_step():
    assert find_place(STEP | TORCHRUN).starter == "torchrun"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "2"},
        BATCH,
        STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1"},
    ],
    ids=["none", "a part of it", "batch script", "step of one task"],
)
def test_a_process_on_its_own_starts_its_workers_itself(environment):
    assert find_place(environment) is None


@pytest.mark.parametrize("bad", [TORCHRUN | {"RANK": "one"}, STEP | {"SLURM_STEP_NODELIST": " "}])
def test_an_environment_that_is_no_number_is_a_fault(bad):
    with pytest.raises(ConfigError, match="environment of this rank cannot be read"):
        find_place(bad)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("localhost", "localhost"),
        ("node[003-007,012],login1", "node003"),
        ("a,b[1-2]", "a"),
        ("rack[2,4]-node[01-16]", "rack2-node01"),
        ("n9.cluster.org,n10", "n9.cluster.org"),
    ],
)
def test_the_first_host_of_a_node_list(nodes, host):
    assert first_host(nodes) == host


def test_a_launcher_that_adopts_insists():
    check_launcher("local", None)
    check_launcher("local", find_place(STEP))
    check_launcher("slurm", find_place(STEP))
    with pytest.raises(ConfigError) as none:
        check_launcher("torchrun", None)
    text = str(none.value)
    assert text.startswith("launcher=torchrun: ") and "WORLD_SIZE" in text and "torchrun --nproc-per-node" in text
    with pytest.raises(ConfigError, match="and torchrun started these"):
        check_launcher("slurm", find_place(TORCHRUN))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (["parallel.pp=4"], "2 x 4 = 8 > 6 ranks that slurm started"),
        (["parallel.pp=2"], "6 ranks that slurm started: 6 is not divisible by 2 x 2 = 4"),
        (["parallel.dp=2"], "2 x 1 x 2 = 4, but there are 6 ranks that slurm started"),
    ],
)
def test_a_world_that_does_not_fit_speaks_of_ranks_not_of_a_key(sizes, words):
    job = compose_train(["launcher=slurm", "parallel.tp=2", *sizes])
    job = replace(job, launcher=replace(job.launcher, workers=6))
    (fault,) = check_topology(job, 0)
    assert words in fault.rule and "launcher.workers" not in str(fault) and " ranks" in fault.way_out
