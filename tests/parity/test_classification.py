"""A class for each text: loss, gradients and weights are those of Hugging Face's own class, in every layout."""

import pytest
from test_grid import case, layout

from gooseslo.testing.parity import assert_parity, run_reference

LAYOUTS = [(1, 1, 1, False), (2, 1, 1, False), (2, 2, 1, True), (1, 2, 2, False)]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize(("tp", "pp", "dp", "sequence_parallel"), LAYOUTS)
def test_classification_fp64(family, tp, pp, dp, sequence_parallel):
    fields = {"num_labels": 3, "pad_token_id": 95, "vocab_size": 96}
    proof = case(tp, pp, dp, fields, family=family, head="sequence-classification", sequence_parallel=sequence_parallel)
    assert_parity(run_reference(proof), layout(proof), loss=1e-12, tensors=1e-9)
