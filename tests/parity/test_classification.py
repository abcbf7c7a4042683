"""A class for each text: loss, gradients and weights are those of Hugging Face's own class, in every layout."""

import pytest
from test_grid import case

from gooseslo.testing.parity import assert_parity, run_on_ranks, run_reference

LAYOUTS = [(1, 1, 1, False), (2, 1, 1, False), (2, 2, 1, True), (1, 2, 2, False)]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize(("tp", "pp", "dp", "sequence_parallel"), LAYOUTS)
def test_classification_fp64(family, tp, pp, dp, sequence_parallel):
    fields = {"num_labels": 3, "pad_token_id": 95, "vocab_size": 96}
    prove(tp, pp, dp, fields, family, sequence_parallel)


@pytest.mark.parametrize(("tp", "pp", "dp"), [(1, 1, 1), (2, 2, 1), (1, 2, 2)])
def test_a_llama_whose_padding_is_its_end_token(tp, pp, dp):
    """As a tokenizer without a padding token has it: its row of the table learns nothing, also where texts hold it."""
    fields = {"num_labels": 3, "pad_token_id": 95, "eos_token_id": 95, "bos_token_id": 95, "vocab_size": 96}
    texts, _ = case(1, 1, 1, fields, family="llama", head="sequence-classification").batch(0)
    assert any((row[:-1] == 95).logical_and(row[1:] != 95).any() for row in texts)
    prove(tp, pp, dp, fields, "llama", False)


def prove(tp, pp, dp, fields, family, sequence_parallel):
    proof = case(tp, pp, dp, fields, family=family, head="sequence-classification", sequence_parallel=sequence_parallel)
    assert_parity(run_reference(proof), run_on_ranks(proof), loss=1e-12, tensors=1e-9)
