"""The tokenizer of a preprocessing run, with all that follows from it: end-of-document id, token type, hash."""

from __future__ import annotations

import functools
import os
import pickle
import re
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from gooseslo.data.indexed.layout import choose_dtype
from gooseslo.data.indexed.sidecar import Sidecar, SourceFile
from gooseslo.data.preprocess.folder import Tally
from gooseslo.data.preprocess.work import Task
from gooseslo.data.tokenizers.byte_pairs import BytePairs, NotBytePairsError, byte_pairs
from gooseslo.data.tokenizers.tokenizer import END_OF_TEXT, DocumentEncoder, fingerprint, load_tokenizer, table_size
from gooseslo.errors import DataError

_TOKENS_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How documents become tokens."""

    tokenizer: PreTrainedTokenizerBase
    name: str
    """For the sidecar."""
    eod_token_id: int | None
    """Appended to each document; None: nothing is."""
    plain: bool = True
    """A document that spells a special token does not get its id."""
    backend: str = "auto"
    """What computes the ids: tokenizers, tiktoken, or auto: tiktoken where it gives the same."""

    @property
    def vocab_size(self) -> int:
        """Rows that an embedding needs, added tokens included."""
        return table_size(self.tokenizer)

    @property
    def dtype(self) -> str:
        return choose_dtype(self.vocab_size).str

    @property
    def hash(self) -> str:
        return fingerprint(self.tokenizer)

    def task(self, text_key: str) -> Task:
        """What the workers are told; a fast tokenizer goes as its JSON, so that they import next to nothing."""
        if self.tokenizer.is_fast:
            tokenizer: str | bytes = self.tokenizer.backend_tokenizer.to_str()
        else:
            tokenizer = pickle.dumps(DocumentEncoder(self.tokenizer, plain=self.plain))
        return Task(
            tokenizer=tokenizer,
            pairs=self.pairs,
            plain=self.plain,
            dtype=self.dtype,
            eod_token_id=self.eod_token_id,
            text_key=text_key,
        )

    @functools.cached_property
    def pairs(self) -> BytePairs | None:
        """What tiktoken is told; None where it is not asked."""
        found = self._byte_pairs() if self.backend != "tokenizers" else None
        return found if isinstance(found, BytePairs) else None

    def check_backend(self) -> None:
        """DataError where tiktoken must be asked, and its ids may be others."""
        if self.backend == "tiktoken" and isinstance(found := self._byte_pairs(), NotBytePairsError):
            raise DataError(
                f"backend=tiktoken: its ids might not be those of tokenizer={self.name}: {found}\n"
                "  leave backend out: tiktoken is taken wherever the ids are the same"
            )

    def _byte_pairs(self) -> BytePairs | NotBytePairsError:
        if not self.tokenizer.is_fast:
            return NotBytePairsError("it is none of the tokenizers library")
        try:
            return byte_pairs(self.tokenizer.backend_tokenizer.to_str(), plain=self.plain)
        except NotBytePairsError as reason:
            return reason

    def sidecar(self, tally: Tally, sources: tuple[SourceFile, ...] = ()) -> Sidecar:
        """The facts about the data set that was written."""
        return Sidecar(
            tokenizer=self.name,
            tokenizer_hash=self.hash,
            vocab_size=self.vocab_size,
            eod_token_id=self.eod_token_id,
            largest_token_id=tally.largest_id,
            dtype=self.dtype,
            documents=tally.documents,
            tokens=tally.tokens,
            empty_documents=tally.empty,
            rejected_documents=tally.rejected,
            sources=sources,
        )


def load(name: str, *, base_dir: Path) -> PreTrainedTokenizerBase:
    """The tokenizer that `tokenizer=` names; DataError if there is none."""
    instead = "train one on the input with train_tokenizer=ENTRIES"
    return load_tokenizer(name, base_dir=base_dir, key="tokenizer", instead=instead, needs_eos=False)


def save(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """The tokenizer's files; OSError where they cannot be written, for which its Rust code has an Exception alone."""
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:
        if not isinstance(error, OSError) and (found := re.search(r"\(os error (\d+)\)", str(error))):
            number = int(found[1])
            raise OSError(number, os.strerror(number)) from error
        raise


def choose_eod(tokenizer: PreTrainedTokenizerBase, *, eod_token: str | None) -> int:
    """The id that ends documents: the tokenizer's own, or that of `eod_token`; DataError if there is none."""
    if eod_token is None:
        if tokenizer.eos_token_id is None:
            raise DataError(
                f"tokenizer={tokenizer.name_or_path}: it has no end-of-text token (eos_token) to part documents\n"
                "  name one of its tokens with eod_token=TOKEN, or leave it out with append_eod=false"
            )
        return int(tokenizer.eos_token_id)
    if (found := tokenizer.get_vocab().get(eod_token)) is None:
        special = [str(token) for token in tokenizer.all_special_tokens][:_TOKENS_SHOWN]
        raise DataError(
            f"eod_token={eod_token}: not a token of the tokenizer\n  its special tokens: {', '.join(special) or 'none'}"
        )
    return int(found)


def check_trained_eod(eod_token: str | None) -> None:
    """DataError if a tokenizer that is yet to be trained will not have this token."""
    if eod_token not in (None, END_OF_TEXT):
        raise DataError(f"eod_token={eod_token}: a trained tokenizer has {END_OF_TEXT} for it\n  leave eod_token out")
