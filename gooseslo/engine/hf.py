"""The one file that touches Hugging Face's model and config classes: a checked config, and an empty model."""

from __future__ import annotations

import copy
import shutil
import warnings
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
)

from gooseslo.errors import ConfigError, Fault
from gooseslo.policies.registry import CAUSAL_LM, CLASSIFICATION

_CLASSES = {CAUSAL_LM: AutoModelForCausalLM, CLASSIFICATION: AutoModelForSequenceClassification}
_CLASS_NAMES = {
    CAUSAL_LM: MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    CLASSIFICATION: MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
}


def empty_model(config: PretrainedConfig, head: str = CAUSAL_LM) -> PreTrainedModel:
    """The model of `config` under a head on the meta device: structure and shapes, no memory.

    ConfigError where the class refuses its config.
    """
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model: PreTrainedModel = _CLASSES[head].from_config(config, dtype=torch.float32)
    except (ValueError, TypeError, KeyError, RuntimeError, ArithmeticError) as error:
        reason = f"it knows no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
        raise ConfigError(Fault(key="model.config", rule=f"transformers cannot build the model: {reason}")) from error
    for name, parameter in model.named_parameters():
        if parameter.numel() == 0:
            raise ConfigError(Fault(key="model.config", rule=f"leaves {name} without a single element"))
    return model


def write_model_files(
    folder: Path, config: PretrainedConfig, tokenizer_folder: Path | None, *, dtype: torch.dtype, head: str = CAUSAL_LM
) -> None:
    """Write `config.json`, the tokenizer's files and, of what generates, `generation_config.json`.

    They are as `from_pretrained` wants them. `dtype`: of the weights beside them.
    """
    config = copy.deepcopy(config)
    config.dtype = dtype
    config.architectures = [_CLASS_NAMES[head][config.model_type]]
    config.save_pretrained(folder)
    if head == CAUSAL_LM:
        GenerationConfig.from_model_config(config).save_pretrained(folder)
    if tokenizer_folder is not None:
        for file in tokenizer_folder.iterdir():
            shutil.copyfile(file, folder / file.name)
