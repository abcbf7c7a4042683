"""An evaluation whose last batch is not full: every sample counts once, by its tokens, in every layout."""

import numpy as np
import pytest
import torch

from gooseslo.data.order.loader import EvalLoader
from gooseslo.data.text.packed import PackedDataset
from gooseslo.engine.build import build_step
from gooseslo.engine.hf import empty_model
from gooseslo.engine.loop import LoopSettings, Position, Trainer
from gooseslo.engine.model_config import make_config
from gooseslo.engine.plan import make_plan
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case
from gooseslo.testing.ranks import run_ranks

LENGTH, GLOBAL_BATCH = 16, 8


def dataset(num_samples):
    tokens = np.random.default_rng(7).integers(0, 96, num_samples * LENGTH + 1, dtype=np.uint16)
    return PackedDataset(tokens, LENGTH)


def evaluated(rank, world_size, case, num_samples, eval_batches):
    """The record of the trainer's own evaluation of random weights, as this rank would report it."""
    plan = make_plan(case.job(), num_devices=0)
    context = ParallelContext(plan.topology, rank)
    step = build_step(plan, context, case.job().train, seed=0, device=torch.device("cpu"))
    loader = EvalLoader(
        dataset(num_samples),
        eval_batches=eval_batches,
        global_batch_size=GLOBAL_BATCH,
        dp_rank=context.at.dp,
        dp_size=case.dp,
    )
    records = []
    trainer = Trainer(
        train_step=step,
        optimizer=torch.optim.SGD(step.model.parameters().values()),
        lr_at=lambda updates: 0.0,
        train_loader=None,
        eval_loader=loader,
        settings=LoopSettings(last_step=0, eval_every=0, save_every=0, save_at_end=False, max_skipped_steps=1),
        save=lambda position: None,
        describe=lambda record: {},
        observers=[records.append],
    )
    trainer._evaluate(Position(), "valid", loader)
    context.close()
    return records[0]["loss"], records[0]["samples"]


def plain_loss(num_samples):
    """The same weights in the stock class, all samples in one batch: the mean over all tokens."""
    case = Case(fields=tiny_fields("gpt2"))
    plan = make_plan(case.job(), num_devices=0)
    step = build_step(plan, ParallelContext(plan.topology), case.job().train, seed=0, device=torch.device("cpu"))
    model = empty_model(make_config("gpt2", case.fields)).to(torch.float64).to_empty(device="cpu")
    model.tie_weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(step.model.parameters()[name])
        samples = [dataset(num_samples).sample(index) for index in range(num_samples)]
        input_ids, labels = (torch.from_numpy(np.stack(part)) for part in list(zip(*samples))[:2])
        logits = model.eval()(input_ids=input_ids, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()


@pytest.mark.parametrize("layout", [{}, {"pp": 2}, {"dp": 2}, {"tp": 2, "pp": 2}, {"pp": 2, "dp": 2}])
@pytest.mark.parametrize("num_samples", [1, 11])
def test_a_last_batch_of_any_size(layout, num_samples):
    """11 samples are a batch of 8 and one of 3: at dp=2 three rows for one rank, and none for the other."""
    case = Case(fields=tiny_fields("gpt2"), samples=GLOBAL_BATCH, **layout)
    for loss, samples in run_ranks(evaluated, case.world_size, case, num_samples, 8):
        assert samples == num_samples
        assert loss == pytest.approx(plain_loss(num_samples), rel=1e-12)


def test_no_more_batches_than_asked_for():
    case = Case(fields=tiny_fields("gpt2"), samples=GLOBAL_BATCH, pp=2)
    for loss, samples in run_ranks(evaluated, 2, case, 19, 1):
        assert samples == 8 and loss == pytest.approx(
            evaluated(0, 1, Case(fields=tiny_fields("gpt2"), samples=8), 19, 1)[0]
        )
