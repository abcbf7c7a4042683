"""The tokenizer that made prepared tokens, kept in the cache as a folder of its own files to lie beside checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from gooseslo.data.cache_folder import find_or_make, folder_of
from gooseslo.data.tokenizers.tokenizer import check_fits, fingerprint, load_tokenizer, rendering
from gooseslo.errors import DataError

_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class KeptTokenizer:
    """Nothing but a tokenizer's files: a folder that a user names may hold a model besides."""

    folder: Path
    eos_token_id: int | None


def find_tokenizer(
    name: str | None,
    *,
    made_with: tuple[str, str] | None,
    folders: Iterable[Path],
    model_vocab_size: int,
    cache_dir: Path,
) -> KeptTokenizer | None:
    """The tokenizer `name`, or that of `made_with`, the name and hash that lie beside the tokens.

    A name is a folder below one of `folders`, or a Hub name whose files are on this machine. DataError for a given
    name that is none, does not fit the model's table, or did not make the tokens. What was not given is not demanded:
    None, with a warning, where it cannot be had.
    """
    if name is None and made_with is None:
        return None
    try:
        tokenizer = _load(name or (made_with[0] if made_with else ""), folders)
        _check_made(tokenizer, made_with)
        check_fits(tokenizer, name=name or (made_with[0] if made_with else ""), model_vocab_size=model_vocab_size)
    except DataError as error:
        if name is not None:
            raise
        logging.getLogger(__name__).warning(
            "warning: no tokenizer will lie beside the checkpoints: %s", str(error).partition("\n")[0]
        )
        return None
    final = folder_of(cache_dir, "tokenizer", [_FORMAT, fingerprint(tokenizer), rendering(tokenizer)])

    def read(folder: Path) -> Path | None:
        return folder if (folder / "tokenizer_config.json").is_file() else None

    def make(folder: Path) -> None:
        tokenizer.save_pretrained(folder)

    return KeptTokenizer(folder=find_or_make(final, read=read, make=make), eos_token_id=tokenizer.eos_token_id)


def _load(name: str, folders: Iterable[Path]) -> PreTrainedTokenizerBase:
    base_dir = next((folder for folder in folders if (folder / name).is_dir()), Path.cwd())
    return load_tokenizer(name, base_dir=base_dir, needs_eos=False)


def _check_made(tokenizer: PreTrainedTokenizerBase, made_with: tuple[str, str] | None) -> None:
    if made_with is not None and fingerprint(tokenizer) != made_with[1]:
        raise DataError(
            f"data.tokenizer={tokenizer.name_or_path}: is not the tokenizer that made data.train, {made_with[0]}\n"
            "  leave the key out, or prepare the text anew"
        )
