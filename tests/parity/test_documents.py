"""Documents packed into one sample do not see each other: each has the logits that it has alone, in every layout."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from test_grid import case
from transformers import AutoModelForCausalLM

from gooseslo.data.indexed.causal_lm import DatasetForCausalLM
from gooseslo.data.order.loader import EvalLoader
from gooseslo.engine.build import build_step
from gooseslo.engine.model_config import make_config
from gooseslo.engine.plan import make_plan
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case, assert_parity, run_on_ranks, run_reference

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from indexed_fixtures import write_prefix

LAYOUTS = [
    ("gpt2", 1, 1, 1, False),
    ("gpt2", 2, 2, 1, False),
    ("gpt2", 2, 2, 1, True),
    ("llama", 2, 1, 2, True),
    ("llama", 1, 2, 2, False),
    ("llama", 2, 2, 1, True),
]


@pytest.mark.parametrize(("family", "tp", "pp", "dp", "sequence_parallel"), LAYOUTS)
def test_training_on_documents_fp64(family, tp, pp, dp, sequence_parallel):
    proof = case(tp, pp, dp, {}, family=family, documents=True, sequence_parallel=sequence_parallel)
    assert_parity(run_reference(proof), run_on_ranks(proof), loss=1e-12, tensors=1e-9)


def stage_of(family, dtype):
    """The module that the schedule calls, and the stock model of the same weights."""
    proof = Case(architecture=family, fields=tiny_fields(family), precision=dtype)
    plan = make_plan(proof.job(), num_devices=0)
    step = build_step(plan, ParallelContext(plan.topology), proof.job().train, seed=0, device=torch.device("cpu"))
    model = AutoModelForCausalLM.from_config(make_config(family, proof.fields), dtype=plan.dtypes.stepped)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(step.model.parameters()[name])
    return step.runner.module.eval(), model.eval()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@torch.no_grad()
def test_a_document_has_the_logits_that_it_has_alone(family):
    stage, model = stage_of(family, "fp64")
    lengths = [[3, 1, 1, 7], [12], [1, 11], [5, 6, 1]]
    ids = torch.randint(0, 96, (4, 12), generator=torch.Generator().manual_seed(3))
    positions = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in lengths])
    packed = stage(ids, position_ids=positions)
    for row, documents in enumerate(lengths):
        for alone, found in zip(ids[row].split(documents), packed[row].split(documents)):
            logits = model(input_ids=alone[None], use_cache=False).logits[0]
            assert (logits - found).abs().max() < 1e-9
    assert (stage(ids) - packed).abs().max() > 1e-3, "without positions the documents see each other"


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@torch.no_grad()
def test_a_document_of_prepared_files_has_the_logits_that_it_has_alone(family, tmp_path):
    """From the files on: each document, or the part of it that a sample holds, as one process reads it."""
    stage, model = stage_of(family, "fp64")
    random = np.random.default_rng(5)
    documents = [random.integers(0, 96, size) for size in (3, 1, 9, 14, 2, 2, 20, 6, 1, 5)]
    data = DatasetForCausalLM(write_prefix(tmp_path / "a", documents), 12, reset_at_document=True)
    loader = EvalLoader(data, eval_batches=9, global_batch_size=len(data), dp_rank=0, dp_size=1)
    (batch,) = loader
    assert batch.position_ids is not None
    packed, whole = stage(batch.input_ids, position_ids=batch.position_ids), set()
    for ids, positions, labels, logits in zip(batch.input_ids, batch.position_ids, batch.labels, packed):
        begins = np.flatnonzero(positions == 0).tolist()
        for begin, end in itertools.pairwise([*begins, len(ids)]):
            alone = model(input_ids=ids[None, begin:end], use_cache=False).logits[0]
            assert (alone - logits[begin:end]).abs().max() < 1e-9
            assert labels[begin : end - 1].tolist() == ids[begin + 1 : end].tolist()
            whole.add(tuple(ids[begin:end].tolist()))
    assert sum(tuple(document.tolist()) in whole for document in documents) >= 6, "most lie in one sample"


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@torch.no_grad()
def test_another_first_document_changes_nothing_in_the_second(family):
    """The small case that users of Megatron reported: positions began again, and attention still leaked."""
    stage, _ = stage_of(family, "fp32")
    ids = torch.tensor([[3, 4, 5, 0, 6, 7, 0], [8, 9, 9, 0, 6, 7, 0]])
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2]]).expand(2, -1)
    one, other = stage(ids, position_ids=positions)[:, 4:]
    assert (one - other).abs().max() <= 1e-6
    one, other = stage(ids)[:, 4:]
    assert (one - other).abs().max() > 1e-3
