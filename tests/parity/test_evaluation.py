"""An evaluation whose last batch is not full: every sample counts once, by its tokens, in every layout."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gooseslo.data.indexed.causal_lm import DatasetForCausalLM
from gooseslo.data.order.loader import EvalLoader
from gooseslo.data.order.sample import Sample
from gooseslo.data.text.packed import PackedDataset
from gooseslo.engine.build import build_step
from gooseslo.engine.hf import empty_model
from gooseslo.engine.loop import LoopSettings, Position, Trainer
from gooseslo.engine.plan import make_plan
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.policies.registry import CLASSIFICATION
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case
from gooseslo.testing.ranks import run_ranks

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from indexed_fixtures import write_prefix

LENGTH, GLOBAL_BATCH = 16, 8
PAD, CLASSES = 95, 3


def dataset(num_samples):
    tokens = np.random.default_rng(7).integers(0, 96, num_samples * LENGTH + 1, dtype=np.uint16)
    return PackedDataset(tokens, LENGTH)


class Texts:
    """Texts of random lengths, the class of each at its last token."""

    sequence_length = LENGTH

    def __init__(self, num_samples):
        self.num_samples = num_samples

    def sample(self, number):
        random = np.random.default_rng(number)
        length = int(random.integers(1, LENGTH + 1))
        ids, labels = np.full(LENGTH, PAD), np.full(LENGTH, -100)
        ids[:length], labels[length - 1] = random.integers(0, PAD, length), random.integers(0, CLASSES)
        return Sample(ids, labels)


def evaluation_of(case, data, eval_batches, rank=0):
    """The record of the trainer's own evaluation of random weights, as this rank would report it."""
    plan = make_plan(case.job(), num_devices=0)
    context = ParallelContext(plan.topology, rank)
    step = build_step(plan, context, case.job().train, seed=0, device=torch.device("cpu"))
    loader = EvalLoader(
        data,
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
    return records[0]


def evaluated(rank, world_size, case, num_samples, eval_batches):
    record = evaluation_of(case, dataset(num_samples), eval_batches, rank)
    return record["loss"], record["samples"]


def classified(rank, world_size, case, num_samples):
    return evaluation_of(case, Texts(num_samples), 8, rank)


@torch.no_grad()
def stock_model(case):
    """Hugging Face's own class with the random weights that every layout of the case begins with."""
    plan = make_plan(case.job(), num_devices=0)
    step = build_step(plan, ParallelContext(plan.topology), case.job().train, seed=0, device=torch.device("cpu"))
    model = empty_model(plan.config, plan.head).to(torch.float64).to_empty(device="cpu")
    model.tie_weights()
    for name, parameter in model.named_parameters():
        parameter.copy_(step.model.parameters()[name])
    return model.eval()


def plain_loss(num_samples):
    """The same weights in the stock class, all samples in one batch: the mean over all tokens."""
    model = stock_model(Case(fields=tiny_fields("gpt2")))
    with torch.no_grad():
        samples = [dataset(num_samples).sample(index) for index in range(num_samples)]
        input_ids, labels = (torch.from_numpy(np.stack(part)) for part in list(zip(*samples))[:2])
        logits = model(input_ids=input_ids, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()


V_SHAPED = [
    {"pp": 2, "schedule": "zbv"},
    {"pp": 2, "schedule": "dualpipev", "micro_batch_size": 1},
    {"pp": 2, "dp": 2, "schedule": "zbv"},
]
"""One rank has both ends: it feeds the ids and knows the loss."""


@pytest.mark.parametrize(
    "layout", [{}, {"pp": 2}, {"dp": 2}, {"tp": 2, "pp": 2}, {"pp": 2, "dp": 2}, *V_SHAPED], ids=str
)
@pytest.mark.parametrize("num_samples", [pytest.param(1, marks=pytest.mark.slow), 11])
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


def classifier(**layout):
    fields = tiny_fields("gpt2", num_labels=CLASSES, pad_token_id=PAD, vocab_size=PAD + 1)
    return Case(fields=fields, head=CLASSIFICATION, samples=GLOBAL_BATCH, **layout)


@torch.no_grad()
def stock_classifier(num_samples):
    """Mean loss and share of right answers of Hugging Face's own class with the same weights, text by text."""
    model = stock_model(classifier())
    losses, right = [], []
    for sample in map(Texts(num_samples).sample, range(num_samples)):
        length = int(np.flatnonzero(sample.labels != -100)[0]) + 1
        label = torch.tensor([sample.labels[length - 1]])
        logits = model(input_ids=torch.from_numpy(sample.input_ids[None, :length])).logits
        losses.append(torch.nn.functional.cross_entropy(logits, label).item())
        right.append(logits.argmax().item() == label.item())
    return np.mean(losses), np.mean(right)


@pytest.mark.parametrize("layout", [{}, {"tp": 2, "pp": 2}, {"pp": 2, "dp": 2}, {"dp": 4}])
def test_accuracy_counts_every_text_once_in_every_layout(layout):
    """11 texts in batches of 8: at dp=4 the last rank has none of the second batch."""
    loss, accuracy = stock_classifier(11)
    assert 0 < accuracy < 1
    case = classifier(**layout)
    for record in run_ranks(classified, case.world_size, case, 11):
        assert record["samples"] == 11 and "perplexity" not in record
        assert record["accuracy"] == accuracy
        assert record["loss"] == pytest.approx(loss, rel=1e-12)


def of_documents(rank, world_size, case, prefix):
    return evaluation_of(case, DatasetForCausalLM(prefix, LENGTH, reset_at_document=True), 8, rank)


@torch.no_grad()
def loss_of_documents(data):
    """The mean over what is predicted, each part of a document read alone by the stock class."""
    model = stock_model(Case(fields=tiny_fields("gpt2")))
    total, count = 0.0, 0
    for sample in map(data.sample, range(data.num_samples)):
        begins = [*np.flatnonzero(sample.position_ids == 0).tolist(), LENGTH]
        for begin, end in itertools.pairwise(begins):
            ids, labels = (torch.from_numpy(part[begin:end]) for part in sample[:2])
            logits = model(input_ids=ids[None], use_cache=False).logits[0]
            total += torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum").item()
            count += int((labels != -100).sum())
    return total / count


@pytest.mark.parametrize("layout", [{"pp": 2}, {"tp": 2, "pp": 2}, {"pp": 2, "dp": 2}, {"dp": 4}])
def test_documents_apart_where_the_last_batch_is_not_full(layout, tmp_path):
    """10 samples: of the second batch a rank at dp=2 has rows that only fill it, and so no documents at all."""
    random = np.random.default_rng(1)
    prefix = write_prefix(tmp_path / "a", [random.integers(0, 96, size) for size in random.integers(1, 14, 24)])
    data = DatasetForCausalLM(prefix, LENGTH, reset_at_document=True)
    assert data.num_samples == 10
    case = Case(fields=tiny_fields("gpt2"), samples=GLOBAL_BATCH, **layout)
    for record in run_ranks(of_documents, case.world_size, case, prefix):
        assert record["samples"] == 10 and record["loss"] == pytest.approx(loss_of_documents(data), rel=1e-12)
