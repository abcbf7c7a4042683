"""The data chapter of OSLO's guide, quoted as one text, runs with the classes of `gooseslo.data`.

Only what no reader could run is replaced: the package, the paths, the values that the guide leaves open, its misprints.
"""

import json

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, SequentialSampler
from transformers import AutoTokenizer

from gooseslo.data import DatasetBlender, DatasetForCausalLM, DatasetPreprocessor
from gooseslo.data.indexed.readers import open_indexed
from gooseslo.data.tokenizers.tokenizer import train_tokenizer

CHAPTER = """
import os
from transformers import AutoTokenizer
from oslo import DatasetPreprocessor

data_names=[
    "/path/to/wikitext103", "/path/to/lambada", ...
]

# 1. Create tokenizer
os.environ["TOKENIZERS_PARALLELISM"] = "true"
tokenizer = AutoTokenizer.from_pretrained(...)

# 2. Create preprocessor
preprocessor = DatasetPreprocessor(
    tokenizer=tokenizer,
    binarization_impl="mmap",
    eod_token_id=tokenizer.eos_token_id,
    append_eod=True,
)

# 3-1. Preform preprocessing (.txt)
# save_file_name + '.idx' and '.bin' will be created.
for data_name in data_names:
    preprocessor.preprocess(
        open(data_name + ".txt"),
        save_file_name=data_name,
        log_interval=100,
    )

# 3-2. Perform preprocessing (.jsonl, Megatron-LM format)
# 1 {"text": "blah blah"}
# 2 {"text": "blah blah"}
# 3 ...
for data_name in data_names:
    preprocessor.preprocess(
        preprocessor.open_jsonl(
            data_name,
            json_key="text",
        ),
        save_file_name=data_name,
        log_interval=100,
    )

# 3-3 Perform preprocessing (any other format)
for data_name in data_names:
    preprocessor.preprocess(
        YOUR_OWN_LIST_OF_STRING,
        save_file_name=data_name,
        log_interval=100,
    )

from oslo import DatasetForCausalLM

# Assume that the total number of data is 10,000.

# The 0th to 7,999th samples are used as training data.
train = DatasetForCausalLM(
    data_name="/path/to/wikitext103",
    start_weight=0.0,
    end_weight=0.8,
    split_type="train",
    max_seq_length=2048,
    binarization_impl="mmap",
)

# The 8,000th to 8,999th samples are used as validation data.
valid = DatasetForCausalLM(
    data_name="/path/to/wikitext103",
    start_weight=0.8,
    end_weight=0.9,
    split_type="valid",
    max_seq_length=2048,
    binarization_impl="mmap",
)

# The 9,000th to 9,999th samples are used as test data.
test = DatasetForCausalLM(
    data_name="/path/to/wikitext103",
    start_weight=0.9,
    end_weight=1.0,
    split_type="valid",
    max_seq_length=test,
    binarization_impl="mmap",
)

from oslo import DatasetBlender

train_dataset_list = [train1, tarin2, train3, ...]
valid_dataset_list = [valid1, valid2, valid3, ...]
test_dataset_list = [test1, test2, test3, ...]

train_dataset = DatasetBlender(train_dataset_list)
valid_dataset = DatasetBlender(valid_dataset_list)
test_dataset = DatasetBlender(test_dataset_list)

from oslo import DistributedProxySampler
from torch.utils.data import Sampler, Dataset
import torch.distributed as dist

# Prepare your dataset and sampler
dataset: Dataset = ...
sampler: Sampler = ...

sampler = DistributedProxySampler(
    sampler=sampler,
    num_replicas=dist.get_world_size(),
    rank=dist.get_rank()
)

from torch.utils.data import DataLoader
from oslo import InfiniteDataLoader

# Prepare your dataloader
dataloader: DataLoader = ...
dataloader = InfiniteDataLoader(dataloader)

for data in dataloader:
    # infinitely repeating !
    pass
"""

LINES = 10_000
"""The number of data that the guide assumes."""


def filled_in(folder) -> str:
    """The chapter with its paths, open values and misprints replaced; each of them occurs as often as said."""
    outputs = iter(["data_name", 'data_name + "-jsonl"', 'data_name + "-list"'])
    replaced = [
        ("from oslo import", "from gooseslo.data import", 5),
        ("/path/to/", f"{folder}/", 5),
        (", ...\n]", "\n]", 1),
        (", ...]", "]", 3),
        ("from_pretrained(...)", f"from_pretrained({str(folder / 'tokenizer')!r})", 1),
        ("dataset: Dataset = ...", "dataset: Dataset = train_dataset", 1),
        ("sampler: Sampler = ...", "sampler: Sampler = SequentialSampler(dataset)", 1),
        ("dataloader: DataLoader = ...", "dataloader: DataLoader = three_passes(dataset, sampler)", 1),
        ("tarin2", "train2", 1),
        ("max_seq_length=test", "max_seq_length=2048", 1),
    ]
    text = CHAPTER
    for old, new, times in replaced:
        assert text.count(old) == times, old
        text = text.replace(old, new)
    # An output is never overwritten: what the guide's three ways of reading write goes to three paths.
    first, *rest = text.split("save_file_name=data_name,")
    return first + "".join(f"save_file_name={next(outputs)},{part}" for part in rest)


class ThreePassesDone(Exception):  # noqa: N818
    """How the guide's endless loop ends here."""


class ThreePasses(DataLoader):
    passes = 0

    def __iter__(self):
        if self.passes == 3:
            raise ThreePassesDone
        self.passes += 1
        return super().__iter__()


@pytest.fixture
def folder(tmp_path):
    for name in ("wikitext103", "lambada"):
        with open(tmp_path / f"{name}.txt", "w", encoding="utf-8") as file:
            file.writelines(f"line {number} of {name}\n" for number in range(LINES))
        with open(tmp_path / f"{name}.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": f"record {number} about reeds"}) + "\n" for number in range(30))
    tokenizer = train_tokenizer(iter(["goose honks line of wikitext103 lambada record about reeds"]), vocab_size=300)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    return tmp_path


@pytest.fixture
def process_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Numbers(Dataset):
    """A data set of another's making, for the guide's `train1`, `valid1` and so on."""

    def __init__(self, first: int, length: int) -> None:
        self.numbers = range(first, first + length)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> int:
        return self.numbers[index]


def test_the_chapter_runs(folder, process_group, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")  # so that what the guide sets ends with this test
    names = {
        f"{split}{which}": Numbers(1000 * which, which * length)
        for split, length in (("train", 8), ("valid", 2), ("test", 1))
        for which in (1, 2, 3)
    }
    names |= {
        "YOUR_OWN_LIST_OF_STRING": [f"goose {number} honks" for number in range(40)],
        "SequentialSampler": SequentialSampler,
        "three_passes": lambda dataset, sampler: ThreePasses(dataset, batch_size=16, sampler=sampler),
    }
    with pytest.raises(ThreePassesDone):
        exec(compile(filled_in(folder), "the data chapter", "exec"), names)

    decode = names["tokenizer"].decode
    for name in ("wikitext103", "lambada"):
        data = open_indexed(str(folder / name))
        assert data.num_documents == LINES
        assert decode(data[7]) == f"line 7 of {name}<|endoftext|>"
        assert decode(open_indexed(str(folder / f"{name}-jsonl"))[29]) == "record 29 about reeds<|endoftext|>"
        assert decode(open_indexed(str(folder / f"{name}-list"))[39]) == "goose 39 honks<|endoftext|>"

    # The guide calls its third part "valid" too, which OSLO took for the second.
    parts = [names[split] for split in ("train", "valid", "test")]
    assert [part.documents for part in parts] == [range(8_000), range(8_000, 9_000), range(9_000, 10_000)]
    assert all(part[0]["input_ids"].shape == (2048,) for part in parts)
    assert not torch.equal(names["valid"][0]["input_ids"], names["test"][0]["input_ids"])

    assert [len(names[f"{split}_dataset"]) for split in ("train", "valid", "test")] == [48, 12, 6]
    blended = names["train_dataset"]
    assert sorted(blended[index] for index in range(48)) == sorted(
        number for which in (1, 2, 3) for number in names[f"train{which}"].numbers
    )
    assert sorted(names["sampler"]) == list(range(48))
    assert len(names["data"]) == 16 and set(names["data"].tolist()) <= {blended[index] for index in range(48)}


def test_weights(folder):
    """Of two data sets with the weights [0.7, 0.3] the first appears at 70 %, the second at 30 %."""
    preprocessor = DatasetPreprocessor(tokenizer=AutoTokenizer.from_pretrained(folder / "tokenizer"))
    for name in ("d1", "d2"):
        preprocessor.preprocess([f"line {number}" for number in range(50)], save_file_name=str(folder / name))
    d1, d2 = (
        DatasetForCausalLM(data_name=str(folder / name), start_weight=0.0, end_weight=1.0, max_seq_length=8)
        for name in ("d1", "d2")
    )
    blender = DatasetBlender([d1, d2], [0.7, 0.3])
    sets, _ = blender.turns.locate(0, 100)
    assert (sets == 0).sum() == 70
