"""Which settings a parameter is updated with, and how the optimizer's state moves to another one."""

import pytest
import torch

from gooseslo.engine.optimizer import build_optimizer, optimizer_tensors, set_lr, set_updates
from gooseslo.parallel.data.strategy import Part
from gooseslo.schema.groups import AdamWConfig, SGDConfig


def parameters():
    return {"weight": torch.nn.Parameter(torch.ones(2, 3)), "bias": torch.nn.Parameter(torch.ones(3))}


def parts(named):
    return [Part(name=name, parameter=p, num_dims=p.dim()) for name, p in named.items()]


@pytest.mark.parametrize("config", [AdamWConfig(weight_decay=0.5, lr=0.1), SGDConfig(weight_decay=0.5, lr=0.1)])
def test_norms_and_biases_do_not_decay(config):
    named = parameters()
    optimizer = build_optimizer(config, parts(named))
    for parameter in named.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.allclose(named["weight"], torch.full((2, 3), 0.95))
    assert torch.equal(named["bias"], torch.ones(3))


def options_of(optimizer, parameter):
    [group] = [group for group in optimizer.param_groups if any(p is parameter for p in group["params"])]
    return group


def test_a_group_sets_what_it_names_and_nothing_else():
    named = {"h.0.weight": torch.nn.Parameter(torch.ones(2, 3)), **parameters()}
    config = AdamWConfig(
        lr=1e-2, weight_decay=0.5, groups={"h.*": {"lr": 1e-3, "betas": [0.8, 0.9]}, "bias": {"weight_decay": 0.25}}
    )
    optimizer = build_optimizer(config, parts(named))
    set_lr(optimizer, 4e-3)
    got = {
        name: [options_of(optimizer, parameter)[key] for key in ("lr", "weight_decay", "betas")]
        for name, parameter in named.items()
    }
    assert got == {
        "h.0.weight": [pytest.approx(4e-4), 0.5, (0.8, 0.9)],
        "weight": [4e-3, 0.5, (0.9, 0.95)],
        "bias": [4e-3, 0.25, (0.9, 0.95)],
    }


def test_parameters_with_equal_settings_share_a_group():
    named = {f"h.{layer}.{name}": p for layer in range(5) for name, p in parameters().items()}
    groups = {"h.0.*": {"weight_decay": 0.1}, "h.1.weight": {"lr": 3e-4}}
    assert len(build_optimizer(AdamWConfig(), parts(named)).param_groups) == 2
    assert len(build_optimizer(AdamWConfig(groups=groups), parts(named)).param_groups) == 2
    assert len(build_optimizer(AdamWConfig(groups={"h.1.weight": {"lr": 3e-5}}), parts(named)).param_groups) == 3


def test_a_rate_of_zero_holds_a_group_where_it_is():
    named = parameters()
    optimizer = build_optimizer(AdamWConfig(groups={"weight": {"lr": 0}}), parts(named))
    for parameter in named.values():
        parameter.grad = torch.ones_like(parameter)
    set_lr(optimizer, 1e-2)
    optimizer.step()
    assert torch.equal(named["weight"], torch.ones(2, 3)) and not torch.equal(named["bias"], torch.ones(3))


GROUPED = SGDConfig(groups={"weight": {"momentum": 0.9}})


def test_only_a_group_with_momentum_has_a_buffer():
    named = parameters()
    state = optimizer_tensors(build_optimizer(GROUPED, parts(named)), "sgd", parts(named), create=True)
    assert [(what, part.name) for what, part, _ in state] == [("momentum_buffer", "weight")]


@pytest.mark.parametrize("config", [AdamWConfig(), SGDConfig(momentum=0.9), SGDConfig(), GROUPED])
def test_state_moves_to_another_optimizer_exactly(config):
    """What a resume does: the second optimizer, given the first one's tensors, takes the same next step."""
    named, others = parameters(), parameters()
    first, second = build_optimizer(config, parts(named)), build_optimizer(config, parts(others))
    for _ in range(3):
        for parameter in named.values():
            parameter.grad = torch.randn_like(parameter)
        first.step()
    saved = {(what, part.name): tensor for what, part, tensor in optimizer_tensors(first, config.name, parts(named))}
    assert bool(saved) == (config != SGDConfig())
    for what, part, tensor in optimizer_tensors(second, config.name, parts(others), create=True):
        tensor.copy_(saved[what, part.name])
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
