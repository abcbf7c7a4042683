"""A prompt and its response, or a chat: what the assistant says is learnt, the token that ends its turn included.

With the tokenizer's chat template both are rendered as a chat; without one, a response follows its prompt directly and
the end-of-text token ends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from gooseslo.data.order.sample import IGNORED_LABEL
from gooseslo.data.supervised.example import Example, text_of
from gooseslo.data.text.records import BadRecordError, checked_text
from gooseslo.data.tokenizers.tokenizer import DocumentEncoder
from gooseslo.errors import DataError

MESSAGES = "messages"
Message = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class InstructionTask:
    prompt_key: str = "prompt"
    response_key: str = "response"
    name: str = "instruction"
    has_classes: bool = False

    def identity(self) -> list[object]:
        return [self.prompt_key, self.response_key]

    def texts(self, record: dict[str, Any]) -> list[str]:
        if MESSAGES in record:
            return [message["content"] for message in _messages(record[MESSAGES])]
        return list(self.pair(record))

    def pair(self, record: dict[str, Any]) -> tuple[str, str]:
        """Prompt and response."""
        way_out = f"set data.prompt_key and data.response_key, or give chats under {MESSAGES!r}"
        prompt = text_of(record, self.prompt_key, option="data.prompt_key", way_out=way_out)
        response = text_of(record, self.response_key, option="data.response_key", way_out=way_out)
        if not response:
            raise BadRecordError(f"{self.response_key!r} is empty: there is nothing to learn")
        return prompt, response

    def label(self, record: dict[str, Any]) -> None:
        return None

    def encoder(self, tokenizer: PreTrainedTokenizerBase, names: list[str]) -> ConversationEncoder:
        return ConversationEncoder(tokenizer, self)


class Pair(NamedTuple):
    """A prompt and what directly follows it."""

    prompt: str
    response: str


class Chat(NamedTuple):
    """A rendered chat, and which characters of it the assistant says: [begin, end) of each of its turns."""

    text: str
    spans: list[tuple[int, int]]


class ConversationEncoder:
    """From records, as JSON has them, to examples of at least one label."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, task: InstructionTask):
        self._tokenizer, self._task = tokenizer, task
        self._encode = DocumentEncoder(tokenizer)
        self._encode_chats = ChatEncoder(tokenizer) if tokenizer.chat_template else None

    def draft(self, record: dict[str, Any]) -> Pair | Chat:
        """With a template a chat, else a pair."""
        if MESSAGES in record:
            messages = _messages(record[MESSAGES])
            if self._encode_chats is None:
                way_out = f"give {self._task.prompt_key!r} and {self._task.response_key!r}, or another data.tokenizer"
                raise BadRecordError(f"{MESSAGES!r}: the tokenizer has no chat template to render a chat with", way_out)
            return self._chat(messages)
        prompt, response = self._task.pair(record)
        if self._encode_chats is None:
            return Pair(prompt, response)
        return self._chat([{"role": "user", "content": prompt}, {"role": "assistant", "content": response}])

    def encode(self, drafts: list[Any]) -> list[Example | BadRecordError]:
        """Drafts of one encoder are all of one kind."""
        if self._encode_chats is not None:
            return [_example(ids, learnt) for ids, learnt in self._encode_chats(drafts)]
        encoded = iter(self._encode([text for pair in drafts for text in (pair.prompt, pair.response)]))
        end = self._tokenizer.eos_token_id
        return [
            _example([*asked, *answered, end], np.arange(len(asked) + len(answered) + 1) >= len(asked))
            for asked, answered in zip(encoded, encoded)
        ]

    def _chat(self, messages: list[Message]) -> Chat:
        """The chat as the template renders it; an assistant's part is what the rendering gains by its message."""
        text = self._rendered(messages)
        spans = []
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                asked = self._rendered(messages[:number], add_generation_prompt=True)
                answered = text if number + 1 == len(messages) else self._rendered(messages[: number + 1])
                if not (text.startswith(answered) and answered.startswith(asked)):
                    raise BadRecordError(
                        "the chat template renders a message in another way when others follow it, so that what the "
                        "assistant says cannot be told apart"
                    )
                spans.append((len(asked), len(answered)))
        return Chat(text, spans)

    def _rendered(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except Exception as error:  # templates raise what they like, for instance for roles that do not alternate
            raise BadRecordError(f"the chat template does not take the chat: {error}") from error
        return str(text)


class ChatEncoder:
    """Ids of rendered chats, whose special tokens are the template's, and which of them the assistant says."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        if not tokenizer.is_fast:
            raise DataError("data.tokenizer: a chat template needs a fast tokenizer, which knows where a token stands")
        self._tokenizer = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())  # a copy, as `FastEncoder` has it
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def __call__(self, chats: list[Chat]) -> Iterator[tuple[list[int], np.ndarray]]:
        """For each chat its ids, and for each of these whether it is learnt."""
        encodings = self._tokenizer.encode_batch([chat.text for chat in chats], add_special_tokens=False)
        for chat, encoding in zip(chats, encodings):
            begins, ends = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
            learnt = np.zeros(len(begins), dtype=bool)
            for begin, end in chat.spans:
                learnt |= (begins >= begin) & (ends <= end) & (begins < end)
            yield encoding.ids, learnt


def _example(ids: Sequence[int], learnt: np.ndarray) -> Example | BadRecordError:
    """n tokens take n - 1 places: the first is only read, the last only predicted.

    What follows the last that is learnt teaches nothing, and is left out: a cut from the left never leaves that alone.
    """
    places = np.flatnonzero(learnt[1:]) + 1
    if not len(places):
        return BadRecordError("its response is no token: there is nothing to learn")
    kept = np.array(ids[: places[-1] + 1], dtype=np.int64)
    return Example(kept[:-1], np.where(learnt[1 : len(kept)], kept[1:], IGNORED_LABEL))


def _messages(value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise BadRecordError(f"{MESSAGES!r} is not a list of messages")
    for number, message in enumerate(value):
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise BadRecordError(f"{MESSAGES}[{number}] is not an object with the texts 'role' and 'content'")
        checked_text(message["content"], f"{MESSAGES}[{number}]")
    if not any(message["role"] == "assistant" and message["content"] for message in value):
        roles = ", ".join(dict.fromkeys(message["role"] for message in value))
        rule = f"{MESSAGES!r}: the assistant says nothing, so there is nothing to learn"
        raise BadRecordError(rule, f"the roles there are: {roles}; what is learnt is that of 'assistant'")
    return value
