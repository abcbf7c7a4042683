"""Prompts and responses: what is learnt, how examples share samples, and what is refused."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gooseslo.data.indexed.index_cache import IndexCache
from gooseslo.data.indexed.layout import write_index
from gooseslo.data.indexed.readers import open_indexed
from gooseslo.data.supervised import dataset as supervised
from gooseslo.data.supervised.dataset import ExampleDataset
from gooseslo.data.supervised.instruction import InstructionTask
from gooseslo.data.supervised.packing import pack
from gooseslo.data.text.records import BadRecordError
from gooseslo.data.tokenizers.fast_encoder import FastEncoder

WORDS = ["<eod>", "<unk>", "<pad>", "goose", "honk", "pond", "egg", "reed", "wing", "nest", "<user>", "<bot>", "<end>"]
CHAT = (
    "{% for m in messages %}{{ '<user> ' if m.role == 'user' else '<bot> ' }}{{ m.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<bot> {% endif %}"
)


def tokenizer(template=None, pad="<pad>"):
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.add_special_tokens([word for word in WORDS if word.startswith("<")])
    made = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eod>", unk_token="<unk>", pad_token=pad)
    made.chat_template = template
    return made


def encoder(template=None, **keys):
    """A record's example; BadRecordError if there is none in it."""
    made = InstructionTask(**keys).encoder(tokenizer(template), [])

    def encode(record):
        (found,) = made.encode([made.draft(record)])
        if isinstance(found, BadRecordError):
            raise found
        return found

    return encode


def words(example):
    """What is read, and what is predicted at each place."""
    return [
        f"{WORDS[read]}:{'' if label == -100 else WORDS[label]}"
        for read, label in zip(example.input_ids, example.labels, strict=True)
    ]


def test_a_response_and_its_end_are_learnt():
    found = encoder(prompt_key="q", response_key="a")({"q": "goose honk", "a": "pond"})
    assert words(found) == ["goose:", "honk:pond", "pond:<eod>"]


def test_keys_may_be_nested():
    keys = {"prompt_key": "ask.text", "response_key": "answer.0"}
    nested = encoder(**keys)
    expected = ["goose:pond", "pond:<eod>"]
    assert words(nested({"ask": {"text": "goose"}, "answer": {"0": "pond"}})) == expected
    assert words(nested({"ask": {"text": "goose"}, "answer.0": "pond"})) == expected
    with pytest.raises(BadRecordError, match=r"no key 'ask\.text'; keys of 'ask': words"):
        nested({"ask": {"words": "goose"}, "answer.0": "pond"})
    with pytest.raises(BadRecordError, match=r"no key 'answer\.0': 'answer' is a text"):
        nested({"ask": {"text": "goose"}, "answer": "pond"})


def test_an_empty_prompt_is_no_fault():
    assert words(encoder()({"prompt": "", "response": "pond"})) == ["pond:<eod>"]


def test_text_that_spells_the_end_is_text():
    found = encoder()({"prompt": "goose <eod>", "response": "egg <eod> egg"})
    assert found.input_ids.tolist().count(0) == 0 and found.labels.tolist().count(0) == 1


def test_a_chat_template_renders_both_kinds():
    expected = ["<user>:", "goose:", "<end>:", "<bot>:honk", "honk:pond", "pond:<end>"]
    assert words(encoder(CHAT)({"prompt": "goose", "response": "honk pond"})) == expected
    chat = [
        {"role": "user", "content": "goose"},
        {"role": "assistant", "content": "honk pond"},
        {"role": "user", "content": "egg"},
        {"role": "assistant", "content": "nest"},
    ]
    more = ["<end>:", "<user>:", "egg:", "<end>:", "<bot>:nest", "nest:<end>"]
    assert words(encoder(CHAT)({"messages": chat})) == [*expected, *more]
    assert words(encoder(CHAT)({"messages": chat[:3]})) == expected, "what nothing is learnt from is not read"


def some_records(count):
    random = np.random.default_rng(0)

    def text(least):
        return " ".join(random.choice(WORDS[3:10], random.integers(least, 9)))

    return [{"prompt": text(0), "response": text(1)} for _ in range(count)]


@pytest.mark.parametrize("template", [None, CHAT])
def test_many_at_once_are_what_they_are_one_by_one(template):
    made, alone = InstructionTask().encoder(tokenizer(template), []), encoder(template)
    records = some_records(40)
    records += [{"messages": [*_turns(one), *_turns(other)]} for one, other in itertools.pairwise(records) if template]
    for record, found in zip(records, made.encode([made.draft(record) for record in records]), strict=True):
        assert words(found) == words(alone(record))


def _turns(pair):
    return [{"role": "user", "content": pair["prompt"]}, {"role": "assistant", "content": pair["response"]}]


def test_a_chats_tokens_are_those_of_the_tokenizers_own_call():
    """With settings of an earlier call, such as a truncation, that no example of ours may have."""
    made = tokenizer(CHAT)
    made("goose", truncation=True, max_length=2)
    encode = InstructionTask().encoder(made, [])
    records = some_records(20)
    for record, found in zip(records, encode.encode([encode.draft(record) for record in records]), strict=True):
        ids = made.apply_chat_template(_turns(record), tokenize=True, return_dict=False)
        assert [*found.input_ids.tolist(), int(found.labels[-1])] == ids


def test_a_batch_is_one_call_of_the_tokenizer(monkeypatch):
    calls = []
    monkeypatch.setattr(
        FastEncoder,
        "__call__",
        lambda self, texts, continued=False: calls.append(len(texts)) or [[4] for text in texts],
    )
    made = InstructionTask().encoder(tokenizer(), [])
    made.encode([made.draft(record) for record in some_records(7)])
    assert calls == [14]


@pytest.mark.parametrize(
    ("template", "record", "reason"),
    [
        (None, {"text": "goose"}, "no key 'prompt'; keys: text"),
        (None, {"prompt": "goose"}, "no key 'response'"),
        (None, {"prompt": 3, "response": "x"}, "'prompt' is a number, not a text"),
        (None, {"prompt": "goose", "response": ""}, "'response' is empty: there is nothing to learn"),
        (None, {"messages": [{"role": "assistant", "content": "x"}]}, "the tokenizer has no chat template"),
        (CHAT, {"messages": []}, "is not a list of messages"),
        (CHAT, {"messages": ["goose"]}, r"messages\[0\] is not an object"),
        (CHAT, {"messages": [{"role": "user", "content": "goose"}]}, "the assistant says nothing"),
        (CHAT, {"messages": [{"role": "assistent", "content": "goose"}]}, "the roles there are: assistent"),
        ("{{ raise_exception('roles') }}", {"prompt": "goose", "response": "x"}, "does not take the chat: roles"),
        ("{{ messages | length }}", {"prompt": "goose", "response": "x"}, "cannot be told apart"),
    ],
)
def test_a_record_that_teaches_nothing_is_refused(template, record, reason):
    with pytest.raises(BadRecordError, match=reason):
        encoder(template)(record)


def stored(folder, name, rows, dtype):
    np.concatenate([np.array(row, dtype=dtype) for row in rows]).tofile(folder / f"{name}.bin")
    write_index(folder / f"{name}.idx", dtype=np.dtype(dtype), sizes=np.array([len(row) for row in rows]))
    return open_indexed(folder / name)


def dataset(folder, ids, labels, *, packing=True, **options):
    made = stored(folder, "ids", ids, "<u2"), stored(folder, "labels", labels, "<i4")
    return ExampleDataset(*made, packing=packing, **options)


def test_padding_that_is_the_end_token_still_teaches_the_end(tmp_path):
    """The small case of a reported fault: batch [3,4,0] and [3,0], padding and end both 0."""
    data = dataset(tmp_path, [[9, 3, 4], [9, 3]], [[3, 4, 0], [3, 0]], sequence_length=3, pad_id=0, packing=False)
    assert [data.sample(number).labels.tolist() for number in range(2)] == [[3, 4, 0], [3, 0, -100]]
    assert [data.sample(number).input_ids.tolist() for number in range(2)] == [[9, 3, 4], [9, 3, 0]]


def test_packed_examples_are_documents_of_their_own(tmp_path):
    ids, labels = [[5, 6], [7, 8, 9, 3], [4]], [[6, 0], [-100, 9, 3, 0], [0]]
    data = dataset(tmp_path, ids, labels, sequence_length=8, pad_id=2)
    assert data.num_samples == 1 and data.num_cut == 0
    sample = data.sample(0)
    assert sample.input_ids.tolist() == [5, 6, 7, 8, 9, 3, 4, 2]
    assert sample.labels.tolist() == [6, 0, -100, 9, 3, 0, 0, -100]
    assert sample.position_ids.tolist() == [0, 1, 0, 1, 2, 3, 0, 0]
    assert data.sample(1).input_ids.tolist() == sample.input_ids.tolist(), "numbers go on over epochs"


@pytest.mark.parametrize(
    ("label_at_end", "read", "learnt"),
    [(False, [4, 5, 6, 7], [5, 6, 7, 0]), (True, [3, 4, 5, 6], [-100, 5, 6, 0])],
)
def test_what_is_too_long_is_cut_and_counted(tmp_path, label_at_end, read, learnt):
    options = {"sequence_length": 4, "pad_id": 2, "label_at_end": label_at_end}
    data = dataset(tmp_path, [[3, 4, 5, 6, 7], [3]], [[-100, 5, 6, 7, 0], [0]], **options)
    assert (data.num_samples, data.num_cut) == (2, 1)
    assert data.sample(0).input_ids.tolist() == read and data.sample(0).labels.tolist() == learnt
    assert data.sample(1).input_ids.tolist() == [3, 2, 2, 2] and data.sample(1).labels.tolist() == [0, -100, -100, -100]


@given(st.lists(st.integers(1, 20), max_size=60))
def test_every_example_is_in_one_pack_that_holds_it(lengths):
    lengths = np.array(lengths, dtype=np.int64)
    examples, starts = pack(lengths, 20)
    assert starts[0] == 0 and starts[-1] == len(lengths)
    assert sorted(examples.tolist()) == list(range(len(lengths)))
    loads = [lengths[examples[a:b]].sum() for a, b in itertools.pairwise(starts)]
    assert all(0 < load <= 20 for load in loads)
    assert len(loads) <= 11 * -(-lengths.sum() // 20) // 9 + 4, (
        "best fit decreasing needs at most 11/9 of the best, and 4"
    )
    assert examples.tolist() == [n for a, b in itertools.pairwise(starts) for n in sorted(examples[a:b])]
    begins = [examples[a:b].min() for a, b in itertools.pairwise(starts)]
    assert begins == sorted(begins)


@given(st.lists(st.integers(1, 12), max_size=80))
def test_packs_are_those_of_best_fit_decreasing(lengths):
    """As the textbook says it: one example after the other, into the pack that it leaves the least room in."""
    loads = []
    for length in sorted(lengths, reverse=True):
        fitting = [number for number, load in enumerate(loads) if load + length <= 12]
        if not fitting:
            loads.append(length)
        else:
            best = max(fitting, key=lambda number: loads[number])
            loads[best] += length
    lengths = np.array(lengths, dtype=np.int64)
    examples, starts = pack(lengths, 12)
    assert sorted(lengths[examples[a:b]].sum() for a, b in itertools.pairwise(starts)) == sorted(loads)


def test_packing_is_worked_out_once_and_mapped(tmp_path, monkeypatch):
    ids, labels = [[5, 6], [7, 8, 9, 3], [4]], [[6, 0], [-100, 9, 3, 0], [0]]
    calls = []
    monkeypatch.setattr(supervised, "pack", lambda *given: calls.append(given) or pack(*given))

    def samples(**options):
        data = dataset(tmp_path, ids, labels, pad_id=2, cache=IndexCache(tmp_path / "index"), **options)
        return data, [data.sample(number).input_ids.tolist() for number in range(data.num_samples)]

    plain, alone = dataset(tmp_path, ids, labels, sequence_length=5, pad_id=2), []
    alone = [plain.sample(number).input_ids.tolist() for number in range(plain.num_samples)]
    assert len(alone) == 2 and len(calls) == 1
    for _ in range(3):
        data, found = samples(sequence_length=5, facts=["one"])
        assert found == alone and isinstance(data._packed.base.base, np.memmap)
    assert len(calls) == 2
    samples(sequence_length=8, facts=["one"])
    samples(sequence_length=5, facts=["other"])
    assert len(calls) == 4
