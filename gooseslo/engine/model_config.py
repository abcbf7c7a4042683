"""`model.config.*` as the architecture's Hugging Face config, and what a job asks of it; imports no model class.

Model classes take a second to import; a wrong size is found before.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging as hf_logging

from gooseslo.errors import ConfigError, Fault, PolicyError
from gooseslo.policies.registry import CAUSAL_LM, CLASSIFICATION, find_policy
from gooseslo.schema.checks import check_model
from gooseslo.schema.groups import TrainJob
from gooseslo.schema.sizes import divisors, nearest_numbers


def check_against_model(job: TrainJob) -> list[Fault]:
    """What of the job does not fit its model: unknown fields, and sizes that tp, pp or the data cannot have."""
    try:
        find_policy(job.model.architecture)
        config = make_config(job.model.architecture, job.model.config, job.model.head)
    except PolicyError as error:
        return [Fault(key="model.architecture", value=job.model.architecture, rule=str(error))]
    except ConfigError as error:
        return error.faults
    faults = _bad_sizes(config)
    if faults or min(job.parallel.tp, job.parallel.pp) < 1:
        return faults
    return check_model(
        job,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_key_value_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        mlp_features=_mlp_features(config),
        num_positions=config.max_position_embeddings,
        vocab_size=config.vocab_size,
    )


def _mlp_features(config: PretrainedConfig) -> int:
    """The width inside the MLP; GPT-2's is four times the hidden one unless given."""
    return getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * config.hidden_size


_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "n_inner",
    "head_dim",
    "max_position_embeddings",
    "num_labels",
)


def _bad_sizes(config: PretrainedConfig) -> list[Fault]:
    """Probabilities, deviations and widths that no model can have; transformers finds them only while it builds one."""
    faults = []
    for name, value in config.to_dict().items():
        if name.endswith(("pdrop", "dropout")) and isinstance(value, int | float) and not 0 <= value <= 1:
            faults.append(Fault(key=f"model.config.{name}", value=value, rule="must be a probability, from 0 to 1"))
    if getattr(config, "initializer_range", 0) < 0:
        rule = "is a standard deviation: must be at least 0"
        faults.append(Fault(key="model.config.initializer_range", value=config.initializer_range, rule=rule))
    if faults:
        return faults
    groups = getattr(config, "num_key_value_heads", None)
    if groups is not None and config.num_attention_heads % groups:
        rule = f"does not divide model.config.num_attention_heads={config.num_attention_heads}"
        way_out = f"nearest: {nearest_numbers(groups, divisors(config.num_attention_heads))}"
        faults.append(Fault(key="model.config.num_key_value_heads", value=groups, rule=rule, way_out=way_out))
    if config.hidden_size % config.num_attention_heads:
        width, heads = (config.attribute_map.get(n, n) for n in ("hidden_size", "num_attention_heads"))
        rule = f"is not divisible by model.config.{heads}={config.num_attention_heads}"
        faults.append(Fault(key=f"model.config.{width}", value=config.hidden_size, rule=rule))
    return faults


def make_config(architecture: str, fields: Mapping[str, Any], head: str = CAUSAL_LM) -> PretrainedConfig:
    """The architecture's Hugging Face config with `fields` (`model.config.*`) set; ConfigError for each wrong one.

    A classification head has the field `num_labels` too, which the library derives from others.
    """
    if architecture not in CONFIG_MAPPING:
        raise ConfigError(
            Fault(key="model.architecture", value=architecture, rule="transformers has no such model type")
        )
    config_class = CONFIG_MAPPING[architecture]
    known = {field.name for field in dataclasses.fields(config_class)} | set(config_class.attribute_map)
    known |= {"num_labels"} if head == CLASSIFICATION else set()
    faults = [_unknown_field(name, value, known) for name, value in fields.items() if name not in known]
    standard = {own: name for name, own in config_class.attribute_map.items()}
    for name, value in fields.items():
        if standard.get(name, name) in _SIZES and isinstance(value, int) and value < 1:
            faults.append(Fault(key=f"model.config.{name}", value=value, rule="must be at least 1"))
    if faults:
        raise ConfigError(faults)
    hf_logging.set_verbosity_error()
    try:
        config = config_class(**fields)
    except (StrictDataclassError, ValueError, TypeError) as error:
        raise ConfigError(_wrong_value(fields, error)) from error
    for token in ("bos_token_id", "eos_token_id", "pad_token_id"):
        default = getattr(config, token, None)
        if token not in fields and isinstance(default, int) and default >= config.vocab_size:
            # The class's default belongs to its published vocabulary; the run's tokenizer gives the real one.
            setattr(config, token, None)
    return config


def _unknown_field(name: str, value: Any, known: set[str]) -> Fault:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    way_out = f"did you mean model.config.{close[0]}?" if close else ""
    return Fault(
        key=f"model.config.{name}", value=value, rule="the architecture's config has no such field", way_out=way_out
    )


def _wrong_value(fields: Mapping[str, Any], error: Exception) -> Fault:
    """The field that transformers' own validation names in its message, with its reason."""
    text = " ".join(str(error).split())
    text = re.sub(r"^Class validation error for validator '\w+': (\w+: )?", "", text)
    named = next((name for name in fields if re.search(rf"['`\"(]{re.escape(name)}['`\")]", text)), None)
    if named is None:
        return Fault(key="model.config", rule=text[:200])
    return Fault(key=f"model.config.{named}", value=fields[named], rule=text[:200])
