"""What is refused before launch is what torch's schedules refuse, and what they take runs to its end."""

from types import SimpleNamespace

import pytest

from gooseslo.parallel.pipeline.placement import StagePlacement
from gooseslo.parallel.pipeline.tables import ONE_STAGE, SEVERAL_STAGES
from gooseslo.schema.schedules import RULES, misfit_of_micro_batches


def placement(name, pp):
    rule = RULES[name]
    return StagePlacement(pp=pp, virtual_stages=rule.virtual_stages, is_v=rule.is_v)


def make(name, pp, num_micro, rank=0):
    """torch's schedule over stages that are never run."""
    placed = placement(name, pp)
    stages = [
        SimpleNamespace(
            num_stages=placed.num_stages,
            group_size=pp,
            group_rank=rank,
            stage_index=number,
            is_first=number == 0,
            is_last=number == placed.num_stages - 1,
            submod=None,
        )
        for number in placed.stages_of(rank)
    ]
    if name in ONE_STAGE:
        return ONE_STAGE[name](stages[0], num_micro, loss_fn=lambda output, target: None)
    return SEVERAL_STAGES[name](stages, num_micro, loss_fn=lambda output, target: None)


def test_every_schedule_has_a_rule():
    assert set(RULES) == {*ONE_STAGE, *SEVERAL_STAGES}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_numbers_of_micro_batches(name, pp):
    for num_micro in range(1, 14):
        misfit = misfit_of_micro_batches(name, pp=pp, num_micro=num_micro)
        if misfit is not None:
            with pytest.raises(ValueError, match="micro"):
                make(name, pp, num_micro)
            assert misfit[1] > num_micro and misfit_of_micro_batches(name, pp=pp, num_micro=misfit[1]) is None
        else:
            make(name, pp, num_micro)


@pytest.mark.parametrize("name", SEVERAL_STAGES)
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_stages_lie_where_torch_looks_for_them(name, pp):
    placed = placement(name, pp)
    ranks = make(name, pp, 2 * pp).stage_index_to_group_rank
    assert {stage: placed.rank_of(stage) for stage in range(placed.num_stages)} == ranks
    assert sorted(stage for rank in range(pp) for stage in placed.stages_of(rank)) == list(range(2 * pp))


def test_the_ends_of_a_v_are_on_one_rank():
    assert not StagePlacement(pp=3, virtual_stages=2, is_v=True).parts_ends
    assert StagePlacement(pp=3, virtual_stages=2, is_v=True).stages_of(1) == (1, 4)
    assert StagePlacement(pp=3, virtual_stages=2).parts_ends and not StagePlacement(pp=1).parts_ends
