"""A policy that does not fit its model is refused before anything starts, naming what does not fit."""

from dataclasses import replace

import pytest
from torch import nn

from gooseslo.engine.hf import empty_model
from gooseslo.engine.model_config import make_config
from gooseslo.errors import PolicyError
from gooseslo.parallel.lint import lint
from gooseslo.policies.gpt2 import GPT2
from gooseslo.policies.llama import LLAMA
from gooseslo.policies.policy import Column, Row
from gooseslo.policies.registry import POLICIES, find_policy
from gooseslo.testing.models import TINY, tiny_fields


def without(table, *names):
    return {name: value for name, value in table.items() if name not in names}


@pytest.mark.parametrize("architecture", sorted(POLICIES))
def test_every_policy_fits_its_tiny_model(architecture):
    assert architecture in TINY, "add a tiny config to gooseslo.testing.models"
    for tied in (True, False):
        config = make_config(architecture, tiny_fields(architecture, tie_word_embeddings=tied))
        lint(empty_model(config), POLICIES[architecture], tied=tied)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"splits": {**GPT2.splits, "transformer.h.*.mlp.c_fx": Column()}}, "c_fx names no module"),
        ({"splits": without(GPT2.splits, "transformer.h.*.mlp.c_fc")}, "c_fc.weight is claimed 0 times"),
        ({"splits": {**GPT2.splits, "transformer.h.0.mlp.c_fc": Row()}}, "c_fc.weight is claimed 2 times"),
        ({"replicated": GPT2.replicated[1:]}, "wpe.weight is claimed 0 times"),
        ({"first": GPT2.first[1:]}, "wte.weight belongs to 0 places"),
        ({"divided": {"transformer.h.*.attn": ("num_headz",)}}, "has no num_headz"),
        ({"replicated_dropout": GPT2.replicated_dropout[1:]}, "transformer.drop drops without a random stream"),
        ({"tied": {"lm_head.weight": "transformer.wpe.weight"}}, "lm_head.weight is not tied"),
    ],
)
def test_a_misfit_is_named(changes, complaint):
    model = empty_model(make_config("gpt2", tiny_fields("gpt2")))
    with pytest.raises(PolicyError) as caught:
        lint(model, replace(GPT2, **changes), tied=True)
    assert complaint in str(caught.value)


ATTENTION, MLP = LLAMA.regions


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"everywhere": ()}, "rotary_emb.inv_freq is a buffer, and nothing would fill it"),
        ({"everywhere": (*LLAMA.everywhere, "model.norm")}, "model.norm.weight is a parameter of a module"),
        ({"regions": (ATTENTION,)}, "mlp.gate_proj is split, and lies in 0 regions"),
        ({"regions": (ATTENTION, MLP, "model.layers.*")}, "lies in 2 regions"),
        ({"regions": (ATTENTION, MLP, "model.layers.*.input_layernorm")}, "input_layernorm has no column layer"),
        (
            {
                "splits": without(LLAMA.splits, "model.layers.*.mlp.down_proj"),
                "replicated": (*LLAMA.replicated, "model.layers.*.mlp.down_proj"),
            },
            "mlp has no row layer",
        ),
        ({"divided_by_copies": {ATTENTION: ("num_groups",)}}, "has no num_groups"),
    ],
)
def test_a_misfit_of_regions_and_buffers_is_named(changes, complaint):
    model = empty_model(make_config("llama", tiny_fields("llama")))
    with pytest.raises(PolicyError) as caught:
        lint(model, replace(LLAMA, **changes), tied=False)
    assert complaint in str(caught.value)


def test_one_wrong_name_in_many_layers_is_a_short_message():
    model = empty_model(make_config("gpt2", tiny_fields("gpt2", n_layer=24)))
    with pytest.raises(PolicyError) as caught:
        lint(model, replace(GPT2, splits=without(GPT2.splits, "transformer.h.*.mlp.c_fc")), tied=True)
    # A weight, a bias and a region without a column layer in each layer.
    assert str(caught.value).count("is claimed 0 times") == 4 and str(caught.value).endswith("; and 68 more")


def test_a_buffer_needs_a_policy_too():
    """Buffers made on the meta device hold garbage once materialised."""
    model = empty_model(make_config("gpt2", tiny_fields("gpt2")))
    model.transformer.h[0].register_buffer("table", nn.Parameter(model.lm_head.weight[:1]).detach(), persistent=False)
    with pytest.raises(PolicyError, match="table is a buffer"):
        lint(model, GPT2, tied=True)


def test_an_unknown_architecture_names_the_known():
    with pytest.raises(PolicyError, match="gpt2"):
        find_policy("gpt3")
