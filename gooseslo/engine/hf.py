"""The one file that touches Hugging Face's model and config classes: a checked config, and an empty model."""

from __future__ import annotations

import copy
import shutil
import warnings
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PretrainedConfig, PreTrainedModel

DTYPES = {"fp32": torch.float32, "fp64": torch.float64}
"""`train.precision` as torch's dtypes."""


def empty_model(config: PretrainedConfig) -> PreTrainedModel:
    """The causal language model of `config` on the meta device: structure and shapes, no memory."""
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model


def write_model_files(folder: Path, config: PretrainedConfig, tokenizer_folder: Path | None) -> None:
    """Write `config.json`, `generation_config.json` and the tokenizer's files, as `from_pretrained` wants them."""
    config = copy.deepcopy(config)
    config.architectures = [AutoModelForCausalLM._model_mapping[type(config)].__name__]
    config.save_pretrained(folder)
    GenerationConfig.from_model_config(config).save_pretrained(folder)
    if tokenizer_folder is not None:
        for file in tokenizer_folder.iterdir():
            shutil.copyfile(file, folder / file.name)
