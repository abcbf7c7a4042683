"""`auto`, torch's schedules as tables, and partitions of ranks that have several stages."""

import itertools

import pytest

from gooseslo.parallel.pipeline.choice import ranked, reason, simulated
from gooseslo.parallel.pipeline.partition import partition_by_rank, partition_by_weight
from gooseslo.parallel.pipeline.placement import StagePlacement
from gooseslo.schema.groups import ParallelConfig
from gooseslo.schema.schedule_file import FileSchedule, check_file_schedule
from gooseslo.schema.schedules import RULES, SPLIT_BACKWARD, candidates, misfit_of_micro_batches


def choose(pp, num_micro, num_layers=64, **keys):
    zero_stage = keys.pop("zero_stage", 0)
    given = candidates(ParallelConfig(pp=pp, **keys), num_layers=num_layers, num_micro=num_micro, zero_stage=zero_stage)
    found = ranked(given, pp=pp, num_micro=num_micro)
    return found[0].name, reason(found[0], found)


@pytest.mark.parametrize("name", RULES)
def test_tables_are_whole_and_end(name):
    for pp, num_micro in itertools.product((2, 3, 4), (1, 2, 5, 8)):
        if misfit_of_micro_batches(name, pp=pp, num_micro=num_micro) is None:
            schedule = simulated(name, RULES[name].virtual_stages, pp=pp, num_micro=num_micro)
            assert check_file_schedule(FileSchedule(path="", table=schedule.table), pp) == []
            assert schedule.simulation.stuck == ()


@pytest.mark.parametrize(("pp", "num_micro"), [(2, 4), (4, 8), (4, 16)])
def test_times_are_those_of_the_papers(pp, num_micro):
    """gpipe and 1f1b: 3 (m + p - 1); interleaved by v: 3 (m + (p - 1) / v); kept: m, p - stage, and p for zbv."""
    by_name = {name: simulated(name, rule.virtual_stages, pp=pp, num_micro=num_micro) for name, rule in RULES.items()}
    for name in ("gpipe", "1f1b"):
        assert by_name[name].simulation.time == 3 * (num_micro + pp - 1)
    for name in ("interleaved_1f1b", "looped_bfs"):
        assert by_name[name].simulation.time == 3 * (num_micro + (pp - 1) / 2)
    assert by_name["gpipe"].most_held == num_micro
    assert by_name["1f1b"].most_held == by_name["zbv"].most_held == pp
    assert by_name["zbv"].simulation.time < by_name["interleaved_1f1b"].simulation.time


@pytest.mark.parametrize(
    ("pp", "num_micro", "keys", "expected"),
    [
        (2, 4, {}, "zbv"),
        (4, 16, {}, "zbv"),
        (2, 1, {}, "interleaved_zb"),
        (2, 4, {"num_layers": 3}, "1f1b"),  # no rank can have two stages
        (4, 2, {"num_layers": 4}, "gpipe"),  # nor has each stage a micro-batch
        (2, 4, {"zero_stage": 2}, "interleaved_1f1b"),
        (2, 128, {}, "1f1b"),  # the others are at most 1 % faster
        (2, 4, {"virtual_stages": 1}, "interleaved_zb"),
        (2, 4, {"virtual_stages": 1, "zero_stage": 3}, "1f1b"),
        (2, 4, {"partition": [1, 2, 1, 2], "num_layers": 6}, "zbv"),
    ],
)
def test_what_auto_takes(pp, num_micro, keys, expected):
    assert choose(pp, num_micro, **keys)[0] == expected


def test_auto_never_takes_what_torch_refuses():
    for pp, num_micro, num_layers, zero_stage in itertools.product((2, 3, 4), range(1, 10), (4, 7, 8), (0, 2)):
        name, _ = choose(pp, num_micro, num_layers, zero_stage=zero_stage)
        assert misfit_of_micro_batches(name, pp=pp, num_micro=num_micro) is None
        assert pp * RULES[name].virtual_stages <= num_layers
        assert zero_stage < 2 or name not in SPLIT_BACKWARD


def test_auto_says_why():
    assert choose(2, 4) == ("zbv", "ranks idle for 4% of a step, with 1f1b 20%")
    assert choose(2, 128)[1] == "ranks idle for 1% of a step, with zbv 0%"
    assert choose(4, 2, 4) == ("gpipe", "ranks idle for 60% of a step; no other fits")
    assert choose(2, 1)[1] == "ranks idle for 33% of a step; 1f1b does not fit"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("virtual_stages", [1, 2])
def test_ranks_are_balanced_as_well_as_can_be(virtual_stages, seed):
    """Against every way there is, with ends that weigh much and layers that differ."""
    placement = StagePlacement(pp=2, virtual_stages=virtual_stages, is_v=virtual_stages == 2)
    layers = [1.0 + (seed * index) % 3 for index in range(8)]

    def cost(counts):
        places = itertools.pairwise(itertools.accumulate([0, *counts]))
        stages = [sum(layers[start:stop]) for start, stop in places]
        stages[0] += seed
        stages[-1] += 4
        return [sum(stages[stage] for stage in placement.stages_of(rank)) for rank in range(2)]

    num_stages = placement.num_stages
    every = [counts for counts in itertools.product(range(1, 8), repeat=num_stages) if sum(counts) == 8]
    start = partition_by_weight(layers, num_stages, first=seed, last=4)
    found = partition_by_rank(start, cost)
    assert sum(found) == 8 and min(found) >= 1
    assert max(cost(found)) == min(max(cost(counts)) for counts in every)
