"""Text on the terminal from a merged folder, in one process."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, TextIO

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from gooseslo.engine.checkpoint import manifest
from gooseslo.engine.run_folder import CHECKPOINTS
from gooseslo.errors import CheckpointError, ConfigError, Fault
from gooseslo.schema.groups import GenerateJob
from gooseslo.schema.quoting import as_argument


def generate(job: GenerateJob, *, stdin: TextIO, stdout: TextIO) -> int:
    """Write the prompt and its continuation to `stdout`; the same for the same job and seed. Returns the exit code.

    An empty prompt starts from the tokenizer's beginning-of-text token and is refused where there is none.
    ConfigError for a prompt or length that the model cannot take, CheckpointError for a folder it cannot be read from.
    """
    folder = merged_folder(job.model.path)
    tokenizer = _load_tokenizer(folder)
    prompt = _read_prompt(job.prompt, stdin)
    ids = _prompt_ids(prompt, tokenizer)
    model = _load_model(folder, init=job.model.init, seed=job.seed)
    _check_length(len(ids), job.max_new_tokens, model.config)
    sampling: dict[str, Any] = {"do_sample": job.do_sample, "num_beams": job.num_beams}
    if job.do_sample:
        sampling |= {"temperature": job.temperature, "top_p": job.top_p, "top_k": job.top_k}
    torch.manual_seed(job.seed)
    input_ids = torch.tensor([ids])
    output = model.generate(
        input_ids=input_ids,
        attention_mask=torch.ones_like(input_ids),
        max_new_tokens=job.max_new_tokens,
        # The tokenizer decides where a text ends: the config may keep the ids of the architecture's own tokenizer.
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        **sampling,
    )
    stdout.write(prompt + _continuation(tokenizer, ids, output[0].tolist()) + "\n")
    stdout.flush()
    return 0


def merged_folder(path: str | None) -> Path:
    """The folder, if it is a merged one; otherwise an error that says how to get one."""
    if path is None:
        raise ConfigError(Fault(key="model.path", rule="is missing", way_out="give a merged folder: model.path=DIR"))
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigError(Fault(key="model.path", value=path, rule="no such folder"))
    if (folder / CHECKPOINTS).is_dir() or (folder / manifest.FILE_NAME).is_file():
        raise CheckpointError(
            f"model.path={path}: a {'run' if (folder / CHECKPOINTS).is_dir() else 'step'} folder, not a merged one\n"
            f"  merge it first: gooseslo merge-checkpoint {shlex.quote(as_argument('input', path))} output=DIR"
        )
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()]
    if not any(folder.glob("model*.safetensors")):
        missing.append("model.safetensors")
    if missing:
        raise CheckpointError(f"model.path={path}: not a merged folder: {', '.join(missing)} is missing")
    if any(name.endswith("Classification") for name in _architectures(folder)):
        raise CheckpointError(f"model.path={path}: a classifier, which writes no text")
    return folder


def _architectures(folder: Path) -> list[str]:
    try:
        return list(json.loads((folder / "config.json").read_text(encoding="utf-8")).get("architectures") or [])
    except (OSError, ValueError, AttributeError):
        return []  # what is wrong with the file is said when the model is loaded


def _load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder}: its tokenizer cannot be loaded: {error}") from error


def _load_model(folder: Path, *, init: str, seed: int) -> Any:
    model_class: Any = AutoModelForCausalLM
    disable_progress_bar()  # type: ignore[no-untyped-call]  # it would be over before it is seen
    try:
        if init == "random":
            torch.manual_seed(seed)
            return model_class.from_config(AutoConfig.from_pretrained(folder, local_files_only=True)).eval()
        model, info = model_class.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    except Exception as error:  # broken JSON, broken safetensors and unknown architectures raise many kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise CheckpointError(f"{folder}: its model cannot be loaded: {reason}") from error
    if missing := sorted(info["missing_keys"]):  # these would be fresh random weights
        raise CheckpointError(f"{folder}: model.safetensors lacks {len(missing)} tensors, the first is {missing[0]}")
    return model.eval()


def _read_prompt(given: str | None, stdin: TextIO) -> str:
    """The prompt as typed, or all of standard input. Bytes that are no UTF-8 arrive as surrogates, or are refused."""
    try:
        prompt = stdin.read() if given is None else given
        prompt.encode()
    except UnicodeError:
        source = "standard input" if given is None else "what was typed"
        raise ConfigError(Fault(key="prompt", rule=f"{source} is not UTF-8 text")) from None
    return prompt


def _prompt_ids(prompt: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    ids: list[int] = tokenizer(prompt)["input_ids"]
    if ids:
        return ids
    if tokenizer.bos_token_id is None:
        rule = "gives no token, and this tokenizer has no beginning-of-text token to start from"
        raise ConfigError(Fault(key="prompt", value=repr(prompt), rule=rule, way_out="give some text"))
    return [tokenizer.bos_token_id]


def _check_length(num_prompt_tokens: int, max_new_tokens: int, config: Any) -> None:
    num_positions = getattr(config, "max_position_embeddings", None)
    if num_positions is None or num_prompt_tokens + max_new_tokens <= num_positions:
        return
    if num_prompt_tokens >= num_positions:
        rule = f"{num_prompt_tokens} tokens leave no room in the model's {num_positions} positions"
        raise ConfigError(Fault(key="prompt", rule=rule, way_out="give a shorter one"))
    rule = f"after a prompt of {num_prompt_tokens} tokens it passes the model's {num_positions} positions"
    way_out = f"largest: max_new_tokens={num_positions - num_prompt_tokens}"
    raise ConfigError(Fault(key="max_new_tokens", value=max_new_tokens, rule=rule, way_out=way_out))


def _continuation(tokenizer: PreTrainedTokenizerBase, prompt_ids: list[int], ids: list[int]) -> str:
    """The new text. Decoded together with the prompt, since some tokenizers drop a first space."""

    def decode(some: list[int]) -> str:
        text: Any = tokenizer.decode(some, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)

    return decode(ids)[len(decode(prompt_ids)) :]
