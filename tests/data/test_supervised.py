"""Records on the disk to samples: kept once, refused by file and line, with the classes that the train split has."""

import json
import shutil

import numpy as np
import pytest

from gooseslo.data.supervised.classification import ClassificationTask
from gooseslo.data.supervised.instruction import InstructionTask
from gooseslo.data.supervised.prepare import prepare_examples
from gooseslo.data.supervised.record_files import RecordFiles
from gooseslo.errors import DataError

PAIRS = [{"prompt": f"how many {word}? ", "response": f"{number} of {word}"} for number, word in enumerate("abcdefgh")]
TEXTS = [
    {"text": f"a {mood} goose number {n}", "label": mood} for n in range(6) for mood in ("glad", "cross", "sleepy")
]


def lines(path, records):
    text = "".join(json.dumps(record) + "\n" for record in records)
    if not path.exists() or path.read_text(encoding="utf-8") != text:  # else it would count as changed
        path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture
def prepared(tmp_path):
    def prepare(task, records, *, valid=None, packing=True, **options):
        given = {"train": lines(tmp_path / "train.jsonl", records)}
        if valid is not None:
            given["valid"] = lines(tmp_path / "valid.jsonl", valid)
        files = RecordFiles(**given, base_dir=tmp_path)
        usual = {"tokenizer": None, "vocab_size": 300, "model_vocab_size": 400, "cache_dir": tmp_path / "cache"}
        return prepare_examples(files, task, packing=packing, base_dir=tmp_path, **{**usual, **options})

    return prepare


def decoded(data, number, tokenizer):
    sample = data.sample(number)
    learnt = sample.labels[sample.labels != -100]
    return tokenizer.decode(sample.input_ids), tokenizer.decode(learnt)


def test_a_pair_is_read_and_its_response_learnt(prepared):
    from transformers import AutoTokenizer

    made = prepared(InstructionTask(), PAIRS, valid=PAIRS[:2], packing=False)
    tokenizer = AutoTokenizer.from_pretrained(made.tokenizer_folder)
    assert made.splits == ("train", "valid") and made.label_names == ()
    data = made.dataset("train", 48)
    assert data.num_samples == len(PAIRS)
    read, learnt = decoded(data, 3, tokenizer)
    assert read.startswith("how many d? 3 of d") and learnt == "3 of d<|endoftext|>"


def test_packing_loses_no_token(prepared):
    alone = prepared(InstructionTask(), PAIRS, packing=False).dataset("train", 64)
    packed = prepared(InstructionTask(), PAIRS).dataset("train", 64)
    assert packed.num_samples < alone.num_samples

    def learnt(data):
        labels = np.concatenate([data.sample(number).labels for number in range(data.num_samples)])
        return sorted(labels[labels != -100].tolist())

    assert learnt(packed) == learnt(alone)


def test_it_is_made_once_and_anew_when_the_text_changes(prepared):
    said = []
    one = prepared(InstructionTask(), PAIRS, progress=said.append)
    assert said and prepared(InstructionTask(), PAIRS[:7], progress=said.append).content != one.content
    said.clear()
    files = RecordFiles(train=str(one.folder.parents[1] / "train.jsonl"), base_dir=one.folder)
    options = {"tokenizer": None, "vocab_size": 300, "model_vocab_size": 400, "cache_dir": one.folder.parent}
    prepare_examples(files, InstructionTask(), packing=True, base_dir=one.folder, progress=said.append, **options)
    assert said == []


def test_another_chat_template_makes_it_anew(prepared, tmp_path):
    one = prepared(InstructionTask(), PAIRS)
    folder = tmp_path / "tokenizer"
    shutil.copytree(one.tokenizer_folder, folder)
    templates = ["{% for m in messages %}" + mark + "{{ m.content }}{% endfor %}" for mark in ("<a>", "<b>")]
    contents = []
    for template in templates:
        (folder / "chat_template.jinja").write_text(template)
        contents.append(prepared(InstructionTask(), PAIRS, tokenizer=str(folder), vocab_size=None).content)
    assert len({one.content, *contents}) == 3


def test_classes_have_numbers_in_the_order_of_the_alphabet(prepared):
    made = prepared(ClassificationTask(), TEXTS, valid=TEXTS[:4], packing=False)
    assert made.label_names == ("cross", "glad", "sleepy")
    data = made.dataset("valid", 32)
    places = [np.flatnonzero(data.sample(number).labels != -100) for number in range(4)]
    assert [data.sample(n).labels[place].tolist() for n, place in enumerate(places)] == [[1], [0], [2], [1]]
    for number, (place,) in enumerate(places):
        assert (data.sample(number).input_ids[place + 1 :] == made.pad_id).all()
        assert data.sample(number).input_ids[place] != made.pad_id


def test_a_long_text_keeps_its_class_at_the_end(prepared):
    data = prepared(ClassificationTask(), [{"text": "goose " * 30, "label": 0}, *TEXTS_BY_NUMBER]).dataset("train", 8)
    assert data.num_cut >= 1
    long = next(data.sample(n) for n in range(data.num_samples) if (data.sample(n).input_ids != 0).all())
    assert long.labels[-1] == 0 and (long.labels[:-1] == -100).all()


TEXTS_BY_NUMBER = [{"text": f"text {number}", "label": number} for number in (2, 0)]


def test_the_keys_of_text_and_class_may_be_nested(prepared):
    records = [{"post": {"body": record["text"]}, "about": {"mood": record["label"]}} for record in TEXTS]
    made = prepared(ClassificationTask(text_key="post.body", label_key="about.mood"), records, packing=False)
    alike = prepared(ClassificationTask(), TEXTS, packing=False)
    assert (made.label_names, made.content) == (alike.label_names, alike.content)


def test_numbers_are_classes_from_zero(prepared):
    assert prepared(ClassificationTask(), TEXTS_BY_NUMBER, packing=False).label_names == ("0", "1", "2")


@pytest.mark.parametrize(
    ("task", "records", "words"),
    [
        (InstructionTask(), [PAIRS[0], {"prompt": "x"}], r"data\.train: .*train\.jsonl, line 2: no key 'response'"),
        (InstructionTask(), ["text"], "line 1: a record is an object, this is a text"),
        (InstructionTask(), [["text"]], "this is a list\n  write each record on a line of its own"),
        (InstructionTask(), [{"prompt": "\ud800", "response": "x"}], "half of a surrogate pair"),
        (InstructionTask(response_key="answer"), PAIRS, r"no key 'answer'.*\n.*data\.response_key"),
        (ClassificationTask(), [{"text": "x"}], r"line 1: no key 'label'; keys: text\n.*data\.label_key"),
        (ClassificationTask(), [{"text": "x", "label": -1}], "'label' is -1; classes are counted from 0"),
        (ClassificationTask(), [{"text": "x", "label": 10**12}], "line 1: 'label' is 1000000000000, beyond the 65536"),
        (ClassificationTask(), [{"text": "x", "label": 0.5}], "'label' is neither a whole number nor a text"),
        (ClassificationTask(), [{"text": "x", "label": True}], "'label' is neither a whole number nor a text"),
        (ClassificationTask(), [TEXTS[0], TEXTS_BY_NUMBER[0]], "texts in others, such as 2 and 'glad'"),
        (ClassificationTask(), [*TEXTS, {"text": "", "label": "glad"}], "'text' is no token: there is nothing to read"),
        (ClassificationTask(), [{"text": "x", "label": " "}], "line 1: 'label' is empty: a class has a name"),
        (ClassificationTask(), [{"text": "x", "label": "\ud800"}], "'label' is not valid Unicode"),
        (ClassificationTask(), TEXTS[:1] * 3, "every record has the label 'glad': there is nothing to tell apart"),
        (ClassificationTask(), TEXTS_BY_NUMBER[:1], "every record has the label 2: there is nothing"),
    ],
)
def test_a_bad_record_is_named_and_nothing_is_left(prepared, tmp_path, task, records, words):
    with pytest.raises(DataError, match=words):
        prepared(task, records)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("where", [0, 3, 600, 1199])
def test_what_only_its_tokens_show_is_said_of_the_right_line(prepared, where):
    """Records are encoded many at once."""
    records = [{"text": f"goose {number}", "label": number % 2} for number in range(1200)]
    records[where]["text"] = ""
    with pytest.raises(DataError, match=rf"train\.jsonl, line {where + 1}: 'text' is no token"):
        prepared(ClassificationTask(), records)


def test_a_class_that_training_never_sees_is_refused(prepared):
    words = r"data\.valid: .*line 1: 'label' is 'shy', which no record of the train split has\n  its classes: "
    with pytest.raises(DataError, match=words):
        prepared(ClassificationTask(), TEXTS, valid=[{"text": "x", "label": "shy"}])


def test_a_part_without_a_record_is_refused(prepared, tmp_path):
    part = {"path": lines(tmp_path / "train.jsonl", PAIRS), "start": 0.5, "end": 0.6}
    files = RecordFiles(train=part, base_dir=tmp_path)
    options = {"tokenizer": None, "vocab_size": None, "model_vocab_size": 400, "cache_dir": tmp_path / "cache"}
    with pytest.raises(
        DataError, match=r"data\.train: .*no record in it\n  it is start=0.5, end=0.6 of .*train\.jsonl"
    ):
        prepare_examples(files, InstructionTask(), packing=True, base_dir=tmp_path, **options)


def test_other_files_than_records_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("goose\n")
    with pytest.raises(DataError, match=r"the ending '\.txt' is not known\n  known: \.jsonl"):
        RecordFiles(train="a.txt", base_dir=tmp_path)
    with pytest.raises(DataError, match=r"data\.train: no file given"):
        RecordFiles(train=None, base_dir=tmp_path)
