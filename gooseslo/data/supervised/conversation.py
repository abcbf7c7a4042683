"""A record of a prompt and its response, or of a chat, to token ids of which some are to be learnt.

With the tokenizer's chat template both are rendered as a chat; without one, a response follows its prompt directly and
the end-of-text token ends it. What the assistant says is learnt, the token that ends its turn included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from gooseslo.data.tokenizer import DocumentEncoder
from gooseslo.errors import DataError

MESSAGES = "messages"
Message = dict[str, str]


class Example(NamedTuple):
    """One record's tokens."""

    ids: np.ndarray
    """int64 [n]."""
    learnt: np.ndarray
    """bool [n]: tokens that the model is to predict."""


class ConversationEncoder:
    """From records, as JSON has them, to examples; a DataError says what is wrong with a record, not where it is."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, prompt_key: str, response_key: str):
        self._tokenizer = tokenizer
        self._prompt_key, self._response_key = prompt_key, response_key
        self._encode = DocumentEncoder(tokenizer)
        self._has_template = bool(tokenizer.chat_template)
        if self._has_template and not tokenizer.is_fast:
            raise DataError("a chat template needs a fast tokenizer, which knows the place of each token in the text")

    def __call__(self, record: dict[str, Any]) -> Example:
        """The example of a record; at least one token of it is to be learnt."""
        if MESSAGES in record:
            messages = _messages(record[MESSAGES])
            if not self._has_template:
                raise DataError(
                    f"{MESSAGES!r}: the tokenizer has no chat template to render a chat with; give "
                    f"{self._prompt_key!r} and {self._response_key!r}, or another data.tokenizer"
                )
            return self._chat(messages)
        prompt, response = (_text(record, key) for key in (self._prompt_key, self._response_key))
        if not response:
            raise DataError(f"{self._response_key!r} is empty: there is nothing to learn")
        if self._has_template:
            return self._chat([{"role": "user", "content": prompt}, {"role": "assistant", "content": response}])
        return self._plain(prompt, response)

    def _plain(self, prompt: str, response: str) -> Example:
        asked, answered = self._encode([prompt, response])
        ids = [*asked, *answered, self._tokenizer.eos_token_id]
        return Example(np.array(ids), np.arange(len(ids)) >= len(asked))

    def _chat(self, messages: list[Message]) -> Example:
        """The chat as the template renders it; an assistant's part is what the rendering gains by its message."""
        text = self._rendered(messages)
        spans = []
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                asked = self._rendered(messages[:number], add_generation_prompt=True)
                answered = self._rendered(messages[: number + 1])
                if not (text.startswith(answered) and answered.startswith(asked)):
                    raise DataError(
                        "the chat template renders a message in another way when others follow it, so that what the "
                        "assistant says cannot be told apart"
                    )
                spans.append((len(asked), len(answered)))
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        begins, ends = np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2).T
        learnt = np.zeros(len(begins), dtype=bool)
        for begin, end in spans:
            learnt |= (begins >= begin) & (ends <= end) & (begins < end)
        return Example(np.array(encoded["input_ids"], dtype=np.int64), learnt)

    def _rendered(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except Exception as error:  # templates raise what they like, for instance for roles that do not alternate
            raise DataError(f"the chat template does not take the chat: {error}") from error
        return str(text)


def _text(record: dict[str, Any], key: str) -> str:
    if key not in record:
        keys = ", ".join(list(record)[:8]) or "none"
        raise DataError(f"no key {key!r} and no {MESSAGES!r}; keys: {keys}")
    if not isinstance(record[key], str):
        raise DataError(f"{key!r} is not a text")
    return str(record[key])


def _messages(value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise DataError(f"{MESSAGES!r} is not a list of messages")
    for number, message in enumerate(value):
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise DataError(f"{MESSAGES}[{number}] is not an object with the texts 'role' and 'content'")
    if not any(message["role"] == "assistant" and message["content"] for message in value):
        raise DataError(f"{MESSAGES!r}: the assistant says nothing, so there is nothing to learn")
    return value
