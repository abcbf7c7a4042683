"""A folder and a cache for runs of the real command line, and one finished run to look at."""

import pytest
from command_line import SMALL, Shell


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def shell(tmp_path, cache):
    return Shell(tmp_path, cache)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, cache):
    """A finished run of 6 steps on the full mesh, saved at 3 and 6; for tests that only look at it."""
    shell = Shell(tmp_path_factory.mktemp("trained"), cache)
    sizes = ["parallel.tp=2", "parallel.pp=2", "train.steps=6", "train.eval_every=3", "checkpoint.every=3"]
    shell.output = shell("train", *SMALL, *sizes, "run.name=run")
    shell("merge-checkpoint", "input=runs/run", "output=merged")
    return shell


@pytest.fixture
def small():
    return list(SMALL)
