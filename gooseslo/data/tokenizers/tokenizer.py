"""The tokenizer of a run: found by name or folder, or a byte-level BPE trained on the run's own text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from gooseslo.data.tokenizers.fast_encoder import FastEncoder
from gooseslo.errors import DataError

END_OF_TEXT = "<|endoftext|>"
DEFAULT_VOCAB_SIZE = 8192
SMALLEST_VOCAB_SIZE = 257
"""Every byte, and the end of a text."""
_PLAIN_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Names of one class, the newer and the older."""


def load_tokenizer(
    name_or_folder: str,
    *,
    base_dir: Path,
    key: str = "data.tokenizer",
    instead: str = "leave the key out for the built-in tokenizer",
    needs_eos: bool = True,
) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder (relative to `base_dir`), or of a Hub name whose files are on this machine already.

    Nothing is downloaded: without a network the attempt alone takes most of a minute. DataError if there is none.
    `key` is what the user typed the name for, `instead` what there is to do without.
    """
    folder = base_dir / name_or_folder
    try:
        tokenizer = _from_pretrained(str(folder) if folder.is_dir() else name_or_folder)
    except Exception as error:  # the library raises many kinds for a name or folder without a usable tokenizer
        if folder.is_dir():
            reason = "\n  " + (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise DataError(f"{key}={name_or_folder}: the folder holds no usable tokenizer{reason}") from error
        trained = f"{name_or_folder}.tokenizer"
        if (base_dir / trained).is_dir():
            raise DataError(f"{key}={name_or_folder}: no tokenizer of that name\n  nearest: {trained}") from error
        if name_or_folder.count("/") > 1 or name_or_folder.endswith(".tokenizer") or name_or_folder[:1] in "/.~":
            raise DataError(f"{key}={name_or_folder}: no such folder\n  name another, or {instead}") from error
        raise DataError(
            f"{key}={name_or_folder}: neither a folder nor a Hub name whose files are on this machine\n"
            f"  fetch it once with `hf download {name_or_folder}`, or {instead}"
        ) from error
    if needs_eos and tokenizer.eos_token_id is None:
        raise DataError(f"{key}={name_or_folder}: it has no end-of-text token (eos_token) to part documents")
    return tokenizer


def _from_pretrained(name_or_folder: str) -> PreTrainedTokenizerBase:
    """As AutoTokenizer does, which takes a second longer to import: it brings torch, for the models it knows."""
    if _names_the_plain_class(Path(name_or_folder)):
        return PreTrainedTokenizerFast.from_pretrained(name_or_folder, local_files_only=True)
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name_or_folder, local_files_only=True)
    return tokenizer


def _names_the_plain_class(folder: Path) -> bool:
    """Whether a folder holds a tokenizer and no model, and says that its tokenizer.json is the whole of it."""
    if not (folder / "tokenizer.json").is_file() or (folder / "config.json").exists():
        return False
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    named = isinstance(config, dict) and config.get("tokenizer_class") in _PLAIN_CLASSES
    return named and "auto_map" not in config


def train_tokenizer(texts: Iterator[str], *, vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of at most `vocab_size` entries, the same for the same texts; `<|endoftext|>` is entry 0."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=bpe,
        eos_token=END_OF_TEXT,
        bos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
    )


def choose_vocab_size(vocab_size: int | None, *, model_vocab_size: int) -> int:
    """The size to train the built-in tokenizer to; DataError if it cannot be, or the model has too small a table."""
    if vocab_size is None and model_vocab_size < SMALLEST_VOCAB_SIZE:
        raise DataError(
            f"model.config.vocab_size={model_vocab_size}: the built-in tokenizer has at least {SMALLEST_VOCAB_SIZE} "
            f"entries\n  raise it to {SMALLEST_VOCAB_SIZE}, or name a smaller tokenizer with data.tokenizer"
        )
    size = min(DEFAULT_VOCAB_SIZE, model_vocab_size) if vocab_size is None else vocab_size
    if size < SMALLEST_VOCAB_SIZE:
        raise DataError(
            f"data.vocab_size={size}: a byte-level tokenizer has at least {SMALLEST_VOCAB_SIZE} entries "
            f"(256 bytes and {END_OF_TEXT})\n  nearest: {SMALLEST_VOCAB_SIZE}"
        )
    if size > model_vocab_size:
        raise DataError(
            f"data.vocab_size={size}: larger than the model's table, model.config.vocab_size={model_vocab_size}\n"
            f"  largest: data.vocab_size={model_vocab_size}"
        )
    return size


@dataclass(frozen=True, kw_only=True)
class ChosenTokenizer:
    """The tokenizer of a run, before its text is read: one that is there, or the size to train the built-in one to."""

    key: str
    """Changes when the ids of some text might."""
    given: PreTrainedTokenizerBase | None
    vocab_size: int

    def make(
        self, texts: Callable[[], Iterator[str]], source: str, progress: Callable[[str], None]
    ) -> PreTrainedTokenizerBase:
        """The tokenizer; the built-in one is trained on `texts`, of the data called `source`."""
        if self.given is not None:
            return self.given
        progress(f"training a tokenizer of {self.vocab_size} entries on data={source}")
        return train_tokenizer(texts(), vocab_size=self.vocab_size)


def choose_tokenizer(
    name: str | None, vocab_size: int | None, *, model_vocab_size: int, base_dir: Path
) -> ChosenTokenizer:
    """`data.tokenizer`, a name or a folder relative to `base_dir`; or None for the built-in one of `data.vocab_size`.

    DataError for what cannot be used, or does not fit the model's table.
    """
    if name is None:
        size = choose_vocab_size(vocab_size, model_vocab_size=model_vocab_size)
        return ChosenTokenizer(key=f"built-in {size}", given=None, vocab_size=size)
    if vocab_size is not None:
        raise DataError(
            f"data.vocab_size={vocab_size}: it is the size of the built-in tokenizer, but data.tokenizer={name} "
            "names another\n  leave one of the two out"
        )
    given = load_tokenizer(name, base_dir=base_dir)
    check_fits(given, name=name, model_vocab_size=model_vocab_size)
    return ChosenTokenizer(key=fingerprint(given), given=given, vocab_size=table_size(given))


def check_fits(tokenizer: PreTrainedTokenizerBase, *, name: str, model_vocab_size: int) -> None:
    """DataError if the tokenizer can give an id that the model's embedding table lacks."""
    if (size := table_size(tokenizer)) > model_vocab_size:
        raise DataError(
            f"data.tokenizer={name}: {size} entries (added tokens included) do not fit the model's table, "
            f"model.config.vocab_size={model_vocab_size}\n  set model.config.vocab_size={size} or more"
        )


def table_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """Rows that an embedding needs: the largest id plus one. `vocab_size` alone leaves added tokens out."""
    return max(len(tokenizer), max(tokenizer.get_vocab().values(), default=0) + 1)


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash that changes when the ids of some text might."""
    if tokenizer.is_fast:
        backend = tokenizer.backend_tokenizer
        if backend.truncation or backend.padding:  # settings of an earlier call, which no encoding of ours has
            backend = Tokenizer.from_str(backend.to_str())
            backend.no_truncation()
            backend.no_padding()
        content = backend.to_str()
    else:
        content = json.dumps([type(tokenizer).__name__, tokenizer.get_vocab()], sort_keys=True)
    return hashlib.sha256(f"{tokenizer.eos_token_id} {content}".encode()).hexdigest()


def rendering(tokenizer: PreTrainedTokenizerBase) -> list[object]:
    """JSON values on which chats and padding depend beside the ids: what `fingerprint` leaves out."""
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return [tokenizer.chat_template, special, tokenizer.pad_token_id]


class DocumentEncoder:
    """Ids of plain text: a document that spells a special token, such as <|endoftext|>, does not get its id.

    (Where the spelling is also a word of the tokenizer's ordinary vocabulary, it is that word.) With `plain` false the
    tokenizer's own way is taken: such a spelling becomes the special token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, plain: bool = True):
        self._tokenizer = tokenizer
        self._plain = plain
        self._fast = FastEncoder(tokenizer.backend_tokenizer.to_str(), plain=plain) if tokenizer.is_fast else None

    def __call__(self, texts: list[str], *, continued: bool = False) -> list[list[int]]:
        """One list of ids a text; a batch at once is several times as fast as one text a call.

        `continued`: later parts of a text, before which nothing is put; a tokenizer written in Python knows none.
        """
        if self._fast is not None:
            return self._fast(texts, continued=continued)
        encoded = self._tokenizer(
            texts, add_special_tokens=False, split_special_tokens=self._plain, truncation=False, verbose=False
        )
        return [list(ids) for ids in encoded["input_ids"]]
