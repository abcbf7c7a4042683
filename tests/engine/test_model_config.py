"""`model.config.*` reaches the Hugging Face config as typed."""

import json

import pytest
import torch

from gooseslo.engine.hf import write_model_files
from gooseslo.engine.model_config import check_against_model, make_config
from gooseslo.schema.groups import ModelConfig, ParallelConfig, TrainConfig, TrainJob
from gooseslo.testing.models import tiny_fields


@pytest.mark.parametrize(("changes", "expected"), [({}, True), ({"use_cache": False}, False)])
def test_use_cache_is_as_typed_or_the_class_default(changes, expected, tmp_path):
    write_model_files(tmp_path, make_config("gpt2", tiny_fields("gpt2", **changes)), None, dtype=torch.float32)
    assert json.loads((tmp_path / "config.json").read_text())["use_cache"] is expected


def tp_faults(tp, **fields):
    model = ModelConfig(architecture="llama", config=tiny_fields("llama", **fields))
    job = TrainJob(model=model, parallel=ParallelConfig(tp=tp), train=TrainConfig(sequence_length=16))
    return [str(fault) for fault in check_against_model(job)]


NINE_ON_THREE = {"hidden_size": 36, "num_attention_heads": 9, "num_key_value_heads": 3}


@pytest.mark.parametrize(
    ("tp", "fields", "rule"),
    [
        (
            2,
            NINE_ON_THREE,
            "parallel.tp=2: does not divide the model's 9 attention heads\n  nearest: 1 or 3; legal: 1, 3, 9",
        ),
        (
            9,
            {**NINE_ON_THREE, "intermediate_size": 24},
            "parallel.tp=9: does not divide the 24 features of the model's",
        ),
        (
            4,
            {"hidden_size": 48, "num_attention_heads": 12, "num_key_value_heads": 6, "intermediate_size": 48},
            "parallel.tp=4: neither divides the model's 6 key-value heads nor is a multiple of them\n"
            "  nearest: 3 or 6; legal: 1, 2, 3, 6, 12",
        ),
    ],
)
def test_a_tp_that_does_not_fit_names_the_legal_sizes(tp, fields, rule):
    [fault] = tp_faults(tp, **fields)
    assert fault.startswith(rule), fault


@pytest.mark.parametrize(("tp", "fields"), [(2, {}), (4, {}), (3, NINE_ON_THREE), (9, NINE_ON_THREE)])
def test_a_tp_that_fits(tp, fields):
    assert tp_faults(tp, **fields) == []


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"num_key_value_heads": 3}, "model.config.num_key_value_heads=3: does not divide model.config.num_attention"),
        ({"num_key_value_heads": 0}, "model.config.num_key_value_heads=0: must be at least 1"),
        ({"head_dim": 7}, "model.config.head_dim=7: RoPE requires an even"),
        ({"intermediate_size": -1}, "model.config.intermediate_size=-1: must be at least 1"),
    ],
)
def test_sizes_that_no_llama_can_have(fields, fault):
    assert any(found.startswith(fault) for found in tp_faults(1, **fields))
