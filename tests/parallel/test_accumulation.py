"""Accumulation over micro-batches, on cases with known values: tokens weigh equally, and nothing is scaled twice."""

import pytest
import torch

from gooseslo.engine.step import StepLoss
from gooseslo.parallel.pipeline.callbacks import Callbacks
from gooseslo.parallel.pipeline.schedule import SequentialRunner
from gooseslo.parallel.pipeline.stopwatch import Stopwatch
from gooseslo.parallel.pipeline.work import RankWork
from gooseslo.parallel.random import RandomStreams


def runner(loss, num_micro):
    weight = torch.nn.Parameter(torch.ones(()))
    module = torch.nn.Module()
    module.forward = lambda x: weight * x
    work = RankWork(RandomStreams(0), Stopwatch(torch.device("cpu")), Callbacks(), first_micro_batch=0, num_micro=4)
    return SequentialRunner(module, loss, work, num_micro=num_micro), weight


def test_the_mean_is_over_tokens_and_not_over_micro_batches():
    """6 tokens with a summed loss of 12, then 2 with 8: 20 / 8 = 2.5, where the mean of means would be 3."""
    made, weight = runner(lambda out, labels: out[labels != -100].sum() / 8, num_micro=2)
    values = torch.tensor([[2.0] * 6, [4.0] * 2 + [9.0] * 4])
    labels = torch.tensor([[0] * 6, [0] * 2 + [-100] * 4])
    losses = made.train(values, labels)
    assert sum(losses).item() == 2.5 and weight.grad.item() == 2.5


@pytest.mark.parametrize("sums", [[4.0, 0.0, 0.0], [0.0, 0.0, 4.0]])
def test_the_order_of_gradients_does_not_matter(sums):
    """Three rounds of four micro-batches, all the gradient in the first or in the last: 4 / 12 either way."""
    made, weight = runner(lambda out, labels: out.sum() / 12, num_micro=4)
    for total in sums:
        made.train(torch.full((4, 1), total / 4), torch.zeros(4, 1))
    assert weight.grad.item() == pytest.approx(4 / 12, rel=1e-6)


def test_a_micro_batch_without_labels_adds_nothing():
    loss = StepLoss(vocabulary_start=0, group=None)
    loss.num_tokens = 8
    logits = torch.randn(1, 3, 5, requires_grad=True)
    value = loss(logits, torch.full((1, 3), -100))
    value.backward()
    assert value.item() == 0 and logits.grad.eq(0).all()
