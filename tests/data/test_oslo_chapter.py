"""The examples of OSLO's guide to its data classes run as they stand, but for paths, sizes, misprints and package."""

import itertools
import json

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, Sampler, SequentialSampler

from gooseslo.data import (
    DatasetBlender,
    DatasetForCausalLM,
    DatasetPreprocessor,
    DistributedProxySampler,
    InfiniteDataLoader,
)
from gooseslo.data.indexed.readers import open_indexed
from gooseslo.data.tokenizers.tokenizer import train_tokenizer

YOUR_OWN_LIST_OF_STRING = [f"goose {number} honks" for number in range(40)]


@pytest.fixture
def data_names(tmp_path):
    names = [str(tmp_path / "wikitext103"), str(tmp_path / "lambada")]
    for name in names:
        with open(name + ".txt", "w", encoding="utf-8") as file:
            file.writelines(f"line {number} of a text about ponds\n" for number in range(50))
        with open(name + ".jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": f"record {number} about reeds"}) + "\n" for number in range(30))
    return names


@pytest.fixture
def tokenizer():
    return train_tokenizer(iter(["goose honks line of a text about ponds record reeds"]), vocab_size=300)


@pytest.fixture
def process_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def preprocessed(data_names, tokenizer):
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
            open(data_name + ".txt"),  # noqa: SIM115
            save_file_name=data_name,
            log_interval=100,
        )
    return preprocessor


def test_preprocessing(data_names, tokenizer):
    preprocessor = preprocessed(data_names, tokenizer)
    data = open_indexed(data_names[0])
    assert data.num_documents == 50
    assert tokenizer.decode(data[7]) == "line 7 of a text about ponds<|endoftext|>"
    # 3-2. Perform preprocessing (.jsonl, Megatron-LM format)
    for data_name in data_names:
        preprocessor.preprocess(
            preprocessor.open_jsonl(
                data_name,
                json_key="text",
            ),
            save_file_name=data_name + "-jsonl",
            log_interval=100,
        )
    assert tokenizer.decode(open_indexed(data_names[1] + "-jsonl")[29]) == "record 29 about reeds<|endoftext|>"
    # 3-3 Perform preprocessing (any other format)
    for data_name in data_names:
        preprocessor.preprocess(
            YOUR_OWN_LIST_OF_STRING,
            save_file_name=data_name + "-list",
            log_interval=100,
        )
    assert open_indexed(data_names[0] + "-list").num_documents == 40


def splits_of(data_name):
    """The guide calls its third part "valid" too, which OSLO took for the second."""
    # The 0th to 7,999th samples are used as training data.
    train = DatasetForCausalLM(
        data_name=data_name,
        start_weight=0.0,
        end_weight=0.8,
        split_type="train",
        max_seq_length=8,
        binarization_impl="mmap",
    )
    # The 8,000th to 8,999th samples are used as validation data.
    valid = DatasetForCausalLM(
        data_name=data_name,
        start_weight=0.8,
        end_weight=0.9,
        split_type="valid",
        max_seq_length=8,
        binarization_impl="mmap",
    )
    # The 9,000th to 9,999th samples are used as test data.
    test = DatasetForCausalLM(
        data_name=data_name,
        start_weight=0.9,
        end_weight=1.0,
        split_type="valid",
        max_seq_length=8,
        binarization_impl="mmap",
    )
    return train, valid, test


def test_three_disjoint_splits(data_names, tokenizer):
    preprocessed(data_names, tokenizer)
    train, valid, test = splits_of(data_names[0])
    assert [part.documents for part in (train, valid, test)] == [range(40), range(40, 45), range(45, 50)]
    assert len(train) > len(valid) and train[0]["input_ids"].shape == (8,)
    assert not torch.equal(valid[0]["input_ids"], test[0]["input_ids"])


def test_blending_sampling_and_looping(data_names, tokenizer, process_group):
    preprocessed(data_names, tokenizer)
    (train1, valid1, test1), (train2, valid2, test2) = map(splits_of, data_names)
    train_dataset_list = [train1, train2]
    valid_dataset_list = [valid1, valid2]
    test_dataset_list = [test1, test2]

    train_dataset = DatasetBlender(train_dataset_list)
    valid_dataset = DatasetBlender(valid_dataset_list)
    test_dataset = DatasetBlender(test_dataset_list)
    assert [len(each) for each in (train_dataset, valid_dataset, test_dataset)] == [
        len(one) + len(other) for one, other in ((train1, train2), (valid1, valid2), (test1, test2))
    ]

    dataset: Dataset = train_dataset
    sampler: Sampler = SequentialSampler(dataset)

    sampler = DistributedProxySampler(
        sampler=sampler,
        num_replicas=dist.get_world_size(),
        rank=dist.get_rank(),
    )
    dataloader = DataLoader(dataset, batch_size=4, sampler=sampler)

    dataloader = InfiniteDataLoader(dataloader)
    passes = 2 * -(-len(dataset) // 4)
    for data in itertools.islice(dataloader, passes):
        # infinitely repeating !
        assert data["input_ids"].shape[1] == 8


def test_weights(data_names, tokenizer):
    """Of two data sets with the weights [0.7, 0.3] the first appears at 70 %, the second at 30 %."""
    preprocessed(data_names, tokenizer)
    (d1, *_), (d2, *_) = map(splits_of, data_names)
    blender = DatasetBlender([d1, d2], [0.7, 0.3])
    sets, _ = blender.turns.locate(0, 100)
    assert (sets == 0).sum() == 70
