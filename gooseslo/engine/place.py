"""Which rank of a world this process is, where torchrun, DeepSpeed's launcher or srun started it. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gooseslo.errors import ConfigError, Fault

_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun and DeepSpeed's launcher both set."""
_OF_SRUN = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_ID")
_FIRST_PORT, _PORTS = 20000, 12000  # below the range that systems give to clients


@dataclass(frozen=True, kw_only=True)
class Place:
    """One process among those that somebody else started."""

    rank: int
    local_rank: int
    world_size: int
    local_size: int
    """Ranks on this machine."""
    host: str
    port: int
    """Where rank 0 listens, or the starter for it."""
    starter: str
    """`torchrun` (DeepSpeed's launcher speaks the same language) or `slurm`: the option of the launcher group."""
    starter_listens: bool = False
    """The port is torchrun's own; rank 0 is one more client."""
    ends_with_parent: bool = False
    """The parent is the launcher, which lives as long as the run."""
    attempt: str = ""
    """Tells this start of the ranks from an earlier one of the same launcher, and from other jobs; the same on all."""
    command: tuple[str, ...] = ()
    """What starts a run the way these ranks were; empty where the environment does not show it."""


def find_place(environment: Mapping[str, str]) -> Place | None:
    """The place that the environment gives this process; None where nobody but the user started it.

    In a batch script of SLURM, and in a step of one task, `gooseslo train` starts its own workers. ConfigError for a
    number that is none.
    """
    try:
        return _of_torchrun(environment) or _of_srun(environment)
    except ValueError as error:
        rule = f"the environment of this rank cannot be read: {error}"
        raise ConfigError(Fault(key="launcher", rule=rule, way_out="unset what launches ranks, such as RANK")) from None


def check_launcher(launcher: str, place: Place | None) -> None:
    """Refuse a launcher that insists on ranks to adopt where nobody started any, or somebody else did.

    `local` adopts what it finds.
    """
    if launcher == "local" or (place is not None and place.starter == launcher):
        return
    start = {"torchrun": "torchrun --nproc-per-node=N -m gooseslo train ...", "slurm": "srun -n N gooseslo train ..."}
    names = ", ".join(_OF_TORCHRUN if launcher == "torchrun" else _OF_SRUN)
    found = f"{place.starter} started these" if place else f"there are none (the environment lacks some of {names})"
    rule = f"adopts ranks that {launcher} started, and {found}"
    way_out = f"{start[launcher]}, or launcher=local"
    raise ConfigError(Fault(key="launcher", value=launcher, rule=rule, way_out=way_out))


def _of_torchrun(environment: Mapping[str, str]) -> Place | None:
    if any(not environment.get(name) for name in _OF_TORCHRUN):
        return None
    by_agent = "TORCHELASTIC_RUN_ID" in environment
    world_size = int(environment["WORLD_SIZE"])
    local_size = int(environment.get("LOCAL_WORLD_SIZE") or environment.get("LOCAL_SIZE") or world_size)
    on_one_machine = by_agent and local_size == world_size
    return Place(
        rank=int(environment["RANK"]),
        local_rank=int(environment["LOCAL_RANK"]),
        world_size=world_size,
        local_size=local_size,
        host=environment["MASTER_ADDR"],
        port=int(environment["MASTER_PORT"]),
        starter="torchrun",
        starter_listens=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        ends_with_parent=by_agent or "CROSS_RANK" in environment,  # the latter is DeepSpeed's launcher
        attempt=_attempt(environment, "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
        command=("torchrun", f"--nproc-per-node={local_size}", "-m", "gooseslo", "train") if on_one_machine else (),
    )


def _of_srun(environment: Mapping[str, str]) -> Place | None:
    num_tasks = int(environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS") or 1)
    if any(not environment.get(name) for name in _OF_SRUN) or num_tasks == 1:
        return None
    lists = (environment.get(name) for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"))
    nodes = next(filter(None, lists), "")
    job, step = (int(environment.get(name) or 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    port = _FIRST_PORT + (job + 97 * step) % _PORTS  # steps of one job may run side by side
    tasks_here = environment.get("SLURM_NTASKS_PER_NODE") or environment.get("SLURM_STEP_TASKS_PER_NODE") or num_tasks
    return Place(
        rank=int(environment["SLURM_PROCID"]),
        local_rank=int(environment["SLURM_LOCALID"]),
        world_size=num_tasks,
        local_size=int(re.sub(r"\D.*", "", str(tasks_here))),  # as in 4(x2),3
        host=environment.get("MASTER_ADDR") or first_host(nodes),
        port=int(environment.get("MASTER_PORT") or port),
        starter="slurm",
        attempt=_attempt(environment, "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
        command=("srun", "-n", str(num_tasks), "gooseslo", "train"),
    )


def _attempt(environment: Mapping[str, str], *names: str) -> str:
    return ".".join(environment.get(name, "") for name in names)


def first_host(nodes: str) -> str:
    """The first host of SLURM's list, as in `node[003-007,012],login1` -> `node003`; ValueError where there is none."""
    # A comma inside brackets does not end the first entry.
    entry = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes.strip())
    if entry is None:
        raise ValueError(f"no host in the node list {nodes!r}")
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", entry[0])
