"""The one file that touches Hugging Face's model and config classes: a checked config, and an empty model."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging as hf_logging

from gooseslo.errors import ConfigError, Fault

DTYPES = {"fp32": torch.float32, "fp64": torch.float64}
"""`train.precision` as torch's dtypes."""


def make_config(architecture: str, fields: Mapping[str, Any]) -> PretrainedConfig:
    """The architecture's Hugging Face config with `fields` (`model.config.*`) set; ConfigError for each wrong one."""
    if architecture not in CONFIG_MAPPING:
        raise ConfigError(
            Fault(key="model.architecture", value=architecture, rule="transformers has no such model type")
        )
    config_class = CONFIG_MAPPING[architecture]
    known = {field.name for field in dataclasses.fields(config_class)} | set(config_class.attribute_map)
    faults = [_unknown_field(name, value, known) for name, value in fields.items() if name not in known]
    if faults:
        raise ConfigError(faults)
    hf_logging.set_verbosity_error()
    try:
        config = config_class(**fields)
    except (ValueError, TypeError) as error:
        raise ConfigError(_wrong_value(fields, error)) from error
    for token in ("bos_token_id", "eos_token_id", "pad_token_id"):
        default = getattr(config, token, None)
        if token not in fields and isinstance(default, int) and default >= config.vocab_size:
            # The class's default belongs to its published vocabulary; the run's tokenizer gives the real one.
            setattr(config, token, None)
    config.use_cache = True
    return config


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


def _unknown_field(name: str, value: Any, known: set[str]) -> Fault:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    way_out = f"did you mean model.config.{close[0]}?" if close else ""
    return Fault(
        key=f"model.config.{name}", value=value, rule="the architecture's config has no such field", way_out=way_out
    )


def _wrong_value(fields: Mapping[str, Any], error: Exception) -> Fault:
    """The field that transformers' own validation names in its message, with its reason."""
    text = " ".join(str(error).split())
    named = next((name for name in fields if f"'{name}'" in text), None)
    key = f"model.config.{named}" if named else "model.config"
    return Fault(key=key, value=fields[named] if named else dict(fields), rule=text[:200])
