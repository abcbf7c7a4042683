"""Which settings a parameter is updated with, and how the optimizer's state moves to another one."""

import inspect

import pytest
import torch

from gooseslo.engine.optimizer import build_optimizer, make_state, optimizer_faults, optimizer_tensors, set_lr
from gooseslo.parallel.data.strategy import Part
from gooseslo.schema.groups import AdafactorConfig, AdamWConfig, SGDConfig, TorchOptimizerConfig
from gooseslo.schema.optimizers import CLASSES, OURS, OWN_OPTIONS, allowed_classes, class_name


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
    optimizer = build_optimizer(GROUPED, parts(named))
    make_state(optimizer, updates=1)
    state = optimizer_tensors(optimizer, parts(named))
    assert [(what, part.name) for what, part, _ in state] == [("momentum_buffer", "weight")]


def every_class():
    """Each class that runs can have, under its own name, with moderate rates."""
    for name in [*OWN_OPTIONS, *allowed_classes()]:
        kind = {"adamw": AdamWConfig, "sgd": SGDConfig, "adafactor": AdafactorConfig}.get(name, TorchOptimizerConfig)
        yield kind(name=name, lr=0.05, weight_decay=0.1 if CLASSES[class_name(kind(name=name))].decays else 0.0)


MORE = [
    SGDConfig(momentum=0.9, options={"nesterov": True}),
    TorchOptimizerConfig(name="RMSprop", options={"momentum": 0.9, "centered": True}),
    TorchOptimizerConfig(name="Adam", options={"amsgrad": True}),
    TorchOptimizerConfig(name="Adagrad", options={"initial_accumulator_value": 0.5}),
    AdamWConfig(groups={"weight": {"amsgrad": True}}),
    GROUPED,
]


@pytest.mark.parametrize("config", [*every_class(), *MORE], ids=lambda config: config.name)
def test_state_moves_to_another_optimizer_exactly(config):
    """What a resume does: the second optimizer, given the first one's tensors, takes the same next step."""
    named, others = parameters(), parameters()
    first, second = build_optimizer(config, parts(named)), build_optimizer(config, parts(others))
    for _ in range(3):
        for parameter in named.values():
            parameter.grad = torch.randn_like(parameter)
        first.step()
    saved = {(what, part.name): tensor for what, part, tensor in optimizer_tensors(first, parts(named))}
    make_state(second, updates=3)
    found = {(what, part.name): tensor for what, part, tensor in optimizer_tensors(second, parts(others))}
    assert found.keys() == saved.keys() and bool(saved) == (config.name != "sgd" or config in MORE)
    for key, tensor in found.items():
        tensor.copy_(saved[key])
    with torch.no_grad():
        for name, parameter in others.items():
            parameter.copy_(named[name])
            parameter.grad = torch.randn_like(parameter)
            named[name].grad = parameter.grad.clone()
    for optimizer in (first, second):
        set_lr(optimizer, 0.05)
        optimizer.step()
    assert all(torch.equal(named[name], others[name]) for name in named)


def test_the_table_of_classes_is_that_of_the_installed_torch():
    classes = {
        name: found
        for name, found in vars(torch.optim).items()
        if isinstance(found, type) and issubclass(found, torch.optim.Optimizer) and found is not torch.optim.Optimizer
    }
    assert set(CLASSES) == set(classes)
    for name, facts in CLASSES.items():
        parameters = dict(inspect.signature(classes[name].__init__).parameters)
        assert facts.decays == ("weight_decay" in parameters) or facts.refused
        if facts.refused:
            continue
        for other in ("self", "params", "lr", "weight_decay", *OURS):
            parameters.pop(other, None)
        assert dict(facts.arguments) == {key: each.default for key, each in parameters.items()}, name


@pytest.mark.parametrize("name", [name for name, facts in CLASSES.items() if not facts.refused])
def test_elementwise_is_what_a_piece_of_a_weight_shows(name):
    """Stepped in two halves, as tensor parallelism and ZeRO cut them, the weight moves as it does whole, or not."""
    torch.manual_seed(0)
    start, gradients = torch.randn(4, 6, dtype=torch.float64), torch.randn(3, 4, 6, dtype=torch.float64)
    make = getattr(torch.optim, name)
    pieces = []
    for rows in (slice(None), slice(0, 2), slice(2, 4)):
        weight = torch.nn.Parameter(start[rows].clone())
        optimizer = make([weight], lr=0.05)
        for gradient in gradients:
            weight.grad = gradient[rows].clone()
            optimizer.step()
        pieces.append(weight.detach())
    whole, *halves = pieces
    assert torch.allclose(torch.cat(halves), whole, rtol=1e-12, atol=0) == CLASSES[name].is_elementwise


def test_what_the_class_itself_refuses_is_a_fault_of_the_configuration():
    (fault,) = optimizer_faults(SGDConfig(options={"nesterov": True}))
    assert "Nesterov momentum requires a momentum" in str(fault) and fault.key == "optimizer"
    (fault,) = optimizer_faults(TorchOptimizerConfig(name="RMSprop", options={"alpha": -1.0}))
    assert "Invalid alpha" in str(fault) and fault.key == "optimizer.name"
    (fault,) = optimizer_faults(TorchOptimizerConfig(name="Adamax", groups={"*.bias": {"eps": -1.0}}))
    assert "*.bias" in str(fault) and fault.key == "optimizer.groups"
    assert all(optimizer_faults(config) == [] for config in every_class())


def test_a_group_sets_an_argument_of_its_class():
    named = parameters()
    config = TorchOptimizerConfig(name="RMSprop", options={"alpha": 0.9}, groups={"bias": {"alpha": 0.5, "lr": 1e-4}})
    optimizer = build_optimizer(config, parts(named))
    found = {name: options_of(optimizer, parameter)["alpha"] for name, parameter in named.items()}
    assert found == {"weight": 0.9, "bias": 0.5} and options_of(optimizer, named["bias"])["lr_factor"] == 0.1


def test_a_rank_that_steps_nothing_has_an_optimizer_that_does_nothing():
    build_optimizer(AdamWConfig(), []).step()
