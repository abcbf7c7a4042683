"""Parameter groups move the same weights by the same rates in every layout, also where a stage has none of a group."""

import pytest
import torch
import torch.nn.functional as F

from gooseslo.engine.build import build_step, by_saved_name
from gooseslo.engine.hf import empty_model
from gooseslo.engine.model_config import make_config
from gooseslo.engine.optimizer import build_optimizer, set_lr
from gooseslo.engine.plan import make_plan
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.schema.groups import AdamWConfig
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case, full_weights
from gooseslo.testing.ranks import run_ranks

RATES = (0.0, 2e-3, 4e-3)
CONFIG = AdamWConfig(
    lr=4e-3,
    weight_decay=0.5,
    groups={
        "transformer.wte.weight": {"lr": 1e-3, "weight_decay": 0.0},
        "transformer.wpe.*": {"lr": 0},
        "*.ln_[12].*": {"betas": [0.5, 0.6], "weight_decay": 0.25},
        "transformer.h.3.mlp.c_fc.weight": {"eps": 1e-2},
    },
)


def options_by_hand(name, dims):
    """What the groups above say, written out: (share of the rate, decay, betas, eps)."""
    if name == "transformer.wte.weight":
        return 0.25, 0.0, (0.9, 0.95), 1e-8
    if name == "transformer.wpe.weight":
        return 0.0, 0.5, (0.9, 0.95), 1e-8
    if ".ln_1." in name or ".ln_2." in name:
        return 1.0, 0.25, (0.5, 0.6), 1e-8
    eps = 1e-2 if name == "transformer.h.3.mlp.c_fc.weight" else 1e-8
    return 1.0, 0.5 if dims == 2 else 0.0, (0.9, 0.95), eps


def trained(rank, world_size, case):
    plan = make_plan(case.job(), num_devices=0)
    context = ParallelContext(plan.topology, rank)
    step = build_step(plan, context, case.job().train, seed=0, device=torch.device("cpu"))
    first = full_weights(step)
    optimizer = build_optimizer(CONFIG, by_saved_name(step))
    for index, rate in enumerate(RATES):
        set_lr(optimizer, rate)
        step(*case.batch(index), step=index, update=optimizer.step)
    last = full_weights(step)
    context.close()
    return first, last


@pytest.fixture(scope="module")
def one_process():
    """Plain transformers, one parameter a group."""
    case = Case(fields=tiny_fields("gpt2"), samples=8)
    first, _ = trained(0, 1, case)
    model = empty_model(make_config("gpt2", case.fields)).to(torch.float64).to_empty(device="cpu")
    model.tie_weights()
    groups = []
    for name, parameter in model.named_parameters():
        parameter.data.copy_(first[name])
        share, decay, betas, eps = options_by_hand(name, parameter.dim())
        groups.append({"params": [parameter], "share": share, "weight_decay": decay, "betas": betas, "eps": eps})
    optimizer = torch.optim.AdamW(groups)
    for index, rate in enumerate(RATES):
        ids, labels = case.batch(index)
        optimizer.zero_grad()
        F.cross_entropy(model(input_ids=ids, use_cache=False).logits.flatten(0, 1), labels.flatten()).backward()
        for group in optimizer.param_groups:
            group["lr"] = rate * group["share"]
        optimizer.step()
    return first, {name: parameter.detach() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("layout", [{}, {"tp": 2}, {"pp": 2}, {"pp": 4}], ids=str)
def test_every_layout_steps_as_one_process_with_groups_written_out(one_process, layout):
    first, expected = one_process
    case = Case(fields=tiny_fields("gpt2"), samples=8, **layout)
    _, weights = run_ranks(trained, case.world_size, case)[0]
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        moved = (expected[name] - first[name]).norm()
        assert (weight - expected[name]).norm() <= 1e-8 * moved, name
        assert (moved == 0) == (name == "transformer.wpe.weight")
