"""`model.config.*` reaches the Hugging Face config as typed."""

import json

import pytest
import torch

from gooseslo.engine.hf import write_model_files
from gooseslo.engine.model_config import make_config
from gooseslo.testing.models import tiny_fields


@pytest.mark.parametrize(("changes", "expected"), [({}, True), ({"use_cache": False}, False)])
def test_use_cache_is_as_typed_or_the_class_default(changes, expected, tmp_path):
    write_model_files(tmp_path, make_config("gpt2", tiny_fields("gpt2", **changes)), None, dtype=torch.float32)
    assert json.loads((tmp_path / "config.json").read_text())["use_cache"] is expected
