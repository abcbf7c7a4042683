"""Learning-rate schedules against values worked out by hand, and which parameters decay."""

import math

import pytest
import torch

from gooseslo.engine.optimizer import build_lr_schedule, build_optimizer, optimizer_tensors, set_lr, set_updates
from gooseslo.parallel.tensor.layouts import whole
from gooseslo.schema.groups import AdamWConfig, ConstantScheduleConfig, CosineScheduleConfig, SGDConfig


def test_constant_after_linear_warm_up():
    lr_at = build_lr_schedule(ConstantScheduleConfig(warmup_steps=4), peak=1e-3, horizon=20)
    assert [lr_at(update) for update in (0, 1, 2, 4, 19)] == pytest.approx([0, 2.5e-4, 5e-4, 1e-3, 1e-3])


def test_cosine_from_peak_to_its_floor():
    lr_at = build_lr_schedule(CosineScheduleConfig(warmup_steps=4, min_ratio=0.1), peak=1.0, horizon=20)
    assert lr_at(0) == 0 and lr_at(3) == 0.75 and lr_at(4) == 1.0
    assert lr_at(12) == pytest.approx(0.55)
    assert lr_at(8) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert lr_at(20) == pytest.approx(0.1) and lr_at(500) == pytest.approx(0.1)


def test_no_warm_up_and_a_warm_up_longer_than_the_run():
    assert build_lr_schedule(CosineScheduleConfig(warmup_steps=0), peak=1.0, horizon=10)(0) == 1.0
    assert build_lr_schedule(CosineScheduleConfig(warmup_steps=50), peak=1.0, horizon=10)(9) == pytest.approx(0.18)


def parameters():
    return {"weight": torch.nn.Parameter(torch.ones(2, 3)), "bias": torch.nn.Parameter(torch.ones(3))}


@pytest.mark.parametrize("config", [AdamWConfig(weight_decay=0.5, lr=0.1), SGDConfig(weight_decay=0.5, lr=0.1)])
def test_norms_and_biases_do_not_decay(config):
    named = parameters()
    optimizer = build_optimizer(config, named)
    for parameter in named.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.allclose(named["weight"], torch.full((2, 3), 0.95))
    assert torch.equal(named["bias"], torch.ones(3))


@pytest.mark.parametrize("config", [AdamWConfig(), SGDConfig(momentum=0.9), SGDConfig()])
def test_state_moves_to_another_optimizer_exactly(config):
    """What a resume does: the second optimizer, given the first one's tensors, takes the same next step."""
    named, others = parameters(), parameters()
    placements = {name: whole(tuple(p.shape)) for name, p in named.items()}
    first, second = build_optimizer(config, named), build_optimizer(config, others)
    for _ in range(3):
        for parameter in named.values():
            parameter.grad = torch.randn_like(parameter)
        first.step()
    saved = optimizer_tensors(first, config.name, named, placements)
    assert bool(saved) == (config != SGDConfig())
    for name, (tensor, _) in optimizer_tensors(second, config.name, others, placements, create=True).items():
        tensor.copy_(saved[name][0])
    set_updates(second, 3)
    with torch.no_grad():
        for name, parameter in others.items():
            parameter.copy_(named[name])
            parameter.grad = torch.randn_like(parameter)
            named[name].grad = parameter.grad.clone()
    for optimizer in (first, second):
        set_lr(optimizer, 0.05)
        optimizer.step()
    assert all(torch.equal(named[name], others[name]) for name in named)
