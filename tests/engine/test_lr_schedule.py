"""Learning-rate schedules against values worked out by hand, at the corners above all."""

import math

import pytest

from gooseslo.engine.lr_schedule import build_lr_schedule, constant, cosine, linear, wsd
from gooseslo.schema.groups import ConstantScheduleConfig, CosineScheduleConfig, LinearScheduleConfig, WSDScheduleConfig


def test_constant_after_linear_warm_up():
    rates = [constant(updates, peak=1e-3, warmup=4) for updates in (0, 1, 2, 4, 19)]
    assert rates == pytest.approx([0, 2.5e-4, 5e-4, 1e-3, 1e-3])
    assert constant(0, peak=1e-3, warmup=0) == 1e-3


def test_linear_from_peak_to_its_floor():
    """Peak 1e-3, warm-up 4, 20 steps, down to 0: every rate is a multiple of 1e-3 / 16."""
    rates = {u: linear(u, peak=1e-3, warmup=4, horizon=20, min_ratio=0.0) for u in (0, 1, 4, 10, 11, 19, 20, 500)}
    expected = {0: 0, 1: 2.5e-4, 4: 1e-3, 10: 6.25e-4, 11: 5.625e-4, 19: 6.25e-5, 20: 0, 500: 0}
    assert rates == pytest.approx(expected, rel=1e-12, abs=0)
    assert linear(12, peak=1.0, warmup=4, horizon=20, min_ratio=0.5) == 0.75
    assert linear(20, peak=1.0, warmup=4, horizon=20, min_ratio=0.5) == 0.5
    assert linear(4, peak=3e-4, warmup=4, horizon=20, min_ratio=0.1) == 3e-4, "exact at both ends"
    assert linear(20, peak=3e-4, warmup=4, horizon=20, min_ratio=0.1) == 0.1 * 3e-4


def test_cosine_from_peak_to_its_floor():
    def lr_at(updates):
        return cosine(updates, peak=1.0, warmup=4, horizon=20, min_ratio=0.1)

    assert lr_at(0) == 0 and lr_at(3) == 0.75 and lr_at(4) == 1.0
    assert lr_at(12) == pytest.approx(0.55)
    assert lr_at(8) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert lr_at(19) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 15 / 16)))
    assert lr_at(20) == pytest.approx(0.1) and lr_at(500) == pytest.approx(0.1)


def test_wsd_holds_the_peak_until_its_last_steps():
    def lr_at(updates):
        return wsd(updates, peak=2.0, warmup=4, horizon=20, min_ratio=0.0, decay=8)

    assert [lr_at(u) for u in (0, 2, 4, 11, 12, 13, 16, 19, 20, 99)] == [0, 1.0, 2.0, 2.0, 2.0, 1.75, 1.0, 0.25, 0, 0]
    assert wsd(20, peak=2.0, warmup=4, horizon=20, min_ratio=0.25, decay=8) == 0.5


def test_wsd_decays_over_a_tenth_of_the_run_unless_told():
    def rates(horizon, warmup):
        return [wsd(u, peak=1.0, warmup=warmup, horizon=horizon, min_ratio=0.0) for u in range(horizon + 1)]

    assert rates(40, 0)[36:] == [1.0, 0.75, 0.5, 0.25, 0.0] and set(rates(40, 0)[:37]) == {1.0}
    assert rates(5, 0) == [1.0] * 5 + [0.0], "a short run decays in one step"
    assert rates(4, 4)[:4] == [0, 0.25, 0.5, 0.75], "warm-up comes first"


def test_a_decay_that_fills_the_run_is_linear():
    for updates in range(25):
        line = linear(updates, peak=1e-3, warmup=4, horizon=20, min_ratio=0.1)
        assert wsd(updates, peak=1e-3, warmup=4, horizon=20, min_ratio=0.1, decay=16) == line


@pytest.mark.parametrize(
    ("config", "rates"),
    [
        (ConstantScheduleConfig(warmup_steps=2), [0, 0.5, 1.0, 1.0, 1.0]),
        (LinearScheduleConfig(warmup_steps=2, min_ratio=0.0), [0, 0.5, 1.0, 0.75, 0.0]),
        (CosineScheduleConfig(warmup_steps=2, min_ratio=0.5), [0, 0.5, 1.0, 0.926776695, 0.5]),
        (WSDScheduleConfig(warmup_steps=2, decay_steps=2, min_ratio=0.0), [0, 0.5, 1.0, 1.0, 0.0]),
        (WSDScheduleConfig(warmup_steps=2, min_ratio=0.5), [0, 0.5, 1.0, 1.0, 0.5]),
    ],
)
def test_a_configuration_gives_its_schedule(config, rates):
    lr_at = build_lr_schedule(config, peak=1.0, horizon=6)
    assert [lr_at(updates) for updates in (0, 1, 2, 3, 6)] == pytest.approx(rates)


def test_a_warm_up_longer_than_the_run_never_ends():
    assert build_lr_schedule(CosineScheduleConfig(warmup_steps=50), peak=1.0, horizon=10)(9) == pytest.approx(0.18)
