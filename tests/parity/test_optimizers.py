"""Each optimizer moves the same weights as torch's own class does in one process of plain transformers."""

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from gooseslo.engine.build import build_step, by_saved_name
from gooseslo.engine.model_config import make_config
from gooseslo.engine.optimizer import build_optimizer, set_lr
from gooseslo.engine.plan import make_plan
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.schema.groups import AdafactorConfig, AdamWConfig, SGDConfig, TorchOptimizerConfig
from gooseslo.schema.optimizers import CLASSES, OWN_OPTIONS, class_name
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case, full_weights
from gooseslo.testing.ranks import run_ranks

# Without biases: that of a key has a gradient of exactly zero but for rounding, whose sign is all that Rprop takes.
FIELDS = tiny_fields("llama", num_hidden_layers=2, tie_word_embeddings=True)
RATES = (2e-3, 4e-3, 1e-3)
DECAY = 0.25
CONFIGS = [
    AdamWConfig(weight_decay=DECAY, betas=[0.8, 0.9]),
    SGDConfig(weight_decay=DECAY, momentum=0.9, options={"nesterov": True}),
    AdafactorConfig(weight_decay=DECAY, d=2.0),
    *(
        TorchOptimizerConfig(name=name, weight_decay=DECAY if facts.decays else 0.0)
        for name, facts in CLASSES.items()
        if not facts.refused and name not in OWN_OPTIONS.values()
    ),
    TorchOptimizerConfig(name="RMSprop", options={"momentum": 0.5, "centered": True, "alpha": 0.8}),
]
ARGUMENTS = {
    # what the configurations above say, as one gives it to torch
    0: {"betas": (0.8, 0.9)},
    1: {"momentum": 0.9, "nesterov": True},
    2: {"d": 2.0},
    len(CONFIGS) - 1: {"momentum": 0.5, "centered": True, "alpha": 0.8},
}


def trained(rank, world_size, case, configs):
    """The initial weights, and those after three steps with each configuration."""
    plan = make_plan(case.job(), num_devices=0)
    context = ParallelContext(plan.topology, rank)
    step = build_step(plan, context, case.job().train, seed=0, device=torch.device("cpu"))
    first, ends = full_weights(step), []
    begin = {name: parameter.detach().clone() for name, parameter in step.model.parameters().items()}
    share = case.samples // case.dp
    mine = slice(context.at.dp * share, (context.at.dp + 1) * share)
    for config in configs:
        with torch.no_grad():
            for name, parameter in step.model.parameters().items():
                parameter.copy_(begin[name])
        optimizer = build_optimizer(config, by_saved_name(step))
        for index, rate in enumerate(RATES):
            set_lr(optimizer, rate)
            ids, labels = case.batch(index)
            step(ids[mine], labels[mine], step=index, update=optimizer.step)
        ends.append(full_weights(step))
    context.close()
    return first, ends


@pytest.fixture(scope="module")
def one_process():
    """Initial weights, and for each configuration those after three steps of a loop that a reader would write."""
    case = Case(architecture="llama", fields=FIELDS, samples=8)
    first, _ = trained(0, 1, case, [])
    model = AutoModelForCausalLM.from_config(make_config("llama", case.fields), dtype=torch.float64)
    ends = []
    for number, config in enumerate(CONFIGS):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(first[name])
        decayed = [p for p in model.parameters() if p.dim() >= 2]
        plain = [p for p in model.parameters() if p.dim() < 2]
        decay = {} if config.name == "Rprop" else {"weight_decay": config.weight_decay}
        groups = [{"params": decayed, **decay}, {"params": plain, **{key: 0.0 for key in decay}}]
        optimizer = getattr(torch.optim, class_name(config))(groups, lr=config.lr, **ARGUMENTS.get(number, {}))
        for index, rate in enumerate(RATES):
            ids, labels = case.batch(index)
            optimizer.zero_grad()
            F.cross_entropy(model(input_ids=ids, use_cache=False).logits.flatten(0, 1), labels.flatten()).backward()
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        ends.append({name: parameter.detach().clone() for name, parameter in model.named_parameters()})
    return first, ends


@pytest.mark.parametrize("layout", [{"dp": 2, "pp": 2}, {"tp": 2}], ids=str)
def test_updated_weights_are_those_of_one_process(one_process, layout):
    first, expected = one_process
    numbers = [
        n for n, config in enumerate(CONFIGS) if "tp" not in layout or CLASSES[class_name(config)].is_elementwise
    ]
    assert len(numbers) >= 12
    case = Case(architecture="llama", fields=FIELDS, samples=8, **layout)
    _, ends = run_ranks(trained, case.world_size, case, [CONFIGS[number] for number in numbers])[0]
    for number, weights in zip(numbers, ends, strict=True):
        assert weights.keys() == expected[number].keys()
        for name, weight in weights.items():
            moved = (expected[number][name] - first[name]).norm()
            off = (weight - expected[number][name]).norm()
            assert moved > 0 and off <= 1e-8 * moved, f"{CONFIGS[number].name} {name}: off by {off / moved:.1e}"
