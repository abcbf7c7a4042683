"""Impossible jobs are refused from the configuration alone, with numbers, keys and the nearest legal value."""

import dataclasses
import subprocess
import sys

import pytest

from gooseslo.schema.checks import check_model, check_train
from gooseslo.schema.compose import compose_train
from gooseslo.schema.groups import TrainJob
from gooseslo.schema.topology import data_parallel_size, num_micro_batches, num_workers


def job_with(**keys):
    """The default job with `group__key` values, unchecked."""
    job = TrainJob()
    for name, value in keys.items():
        group, _, key = name.partition("__")
        job = dataclasses.replace(
            job, **{group: dataclasses.replace(getattr(job, group), **{key: value}) if key else value}
        )
    return job


def messages(job, **options):
    return [str(fault) for fault in check_train(job, **options)]


@pytest.mark.parametrize(
    ("tp", "pp", "workers", "words"),
    [
        (2, 4, 4, ["2 x 4 = 8 > 4", "launcher.workers=8"]),
        (2, 1, 3, ["3 is not divisible by 2", "launcher.workers=2 or 4"]),
        (3, 1, 4, ["4 is not divisible by 3", "launcher.workers=3 or 6", "parallel.tp=2 or 4"]),
        (0, 1, 4, ["parallel.tp=0: must be at least 1"]),
        (1, -1, 4, ["parallel.pp=-1: must be at least 1"]),
    ],
)
def test_a_world_that_does_not_fit(tp, pp, workers, words):
    (message,) = messages(job_with(parallel__tp=tp, parallel__pp=pp, launcher__workers=workers))
    for word in words:
        assert word in message
    assert len(message.splitlines()) <= 5


def test_tp_three_with_three_workers_fits():
    assert messages(job_with(parallel__tp=3, launcher__workers=3)) == []


def test_workers_follow_from_devices():
    job = job_with(parallel__tp=2)
    assert num_workers(job, None) is None and num_workers(job, 0) == 2 and num_workers(job, 8) == 8
    assert data_parallel_size(job, 8) == 4
    assert num_micro_batches(job, 4) == 1
    assert num_workers(job_with(parallel__tp=2, parallel__dp=2, device="cpu"), None) == 4
    (message,) = messages(job, num_devices=1)
    assert "2 x 1 = 2 > 1" in message and "device=cpu" in message
    assert "no CUDA device" in messages(job_with(device="cuda"), num_devices=0)[0]
    (message,) = messages(job_with(parallel__dp=3, launcher__workers=4))
    assert "1 x 1 x 3 = 3" in message and "parallel.dp=4" in message


@pytest.mark.parametrize(
    ("keys", "num_devices", "words", "not_advised"),
    [
        ({"launcher__workers": 4, "device": "cuda"}, 1, "launcher.workers=4: more than the 1 CUDA devices", "nearest"),
        ({"launcher__workers": 4}, 2, "launcher.workers=4: more than the 2 CUDA devices", "nearest"),
        ({"parallel__tp": 2, "parallel__pp": 2}, 2, "nearest: device=cpu, or parallel.tp=1", "launcher.workers="),
        ({"parallel__tp": 3}, 4, "nearest: launcher.workers=3, or parallel.tp=2 or 4", "6"),
        ({"parallel__dp": 3}, 2, "device=cpu, or parallel.dp=2", "launcher.workers="),
        ({"parallel__tp": 2, "launcher__workers": 1}, 1, "launcher.workers=2 device=cpu", "workers=2,"),
        ({"parallel__tp": 2, "launcher__workers": 1}, 2, "nearest: launcher.workers=2, or", "device=cpu"),
    ],
)
def test_workers_on_devices_are_at_most_the_devices(keys, num_devices, words, not_advised):
    (message,) = messages(job_with(**keys), num_devices=num_devices)
    assert words in message
    assert not_advised not in message


def test_more_workers_than_devices_are_fine_on_the_cpu():
    assert messages(job_with(launcher__workers=4, device="cpu"), num_devices=1) == []
    assert messages(job_with(launcher__workers=2), num_devices=2) == []
    assert compose_train(["recipe=demo"]).device == "cpu"
    assert messages(compose_train(["recipe=demo"]), num_devices=1) == []


@pytest.mark.parametrize(
    ("batch", "micro", "dp", "nearest"),
    [
        (5, 2, None, "train.global_batch_size=4 or 6, or train.micro_batch_size=1 or 5"),
        (8, 3, None, "train.global_batch_size=6 or 9, or train.micro_batch_size=2 or 4"),
        (8, 2, 3, "train.global_batch_size=6 or 12"),
    ],
)
def test_a_batch_that_does_not_divide(batch, micro, dp, nearest):
    job = job_with(train__global_batch_size=batch, train__micro_batch_size=micro, parallel__dp=dp, device="cpu")
    (message,) = messages(job)
    assert str(batch) in message and f"= {micro * (dp or 1)}" in message and nearest in message


def test_fewer_micro_batches_than_stages():
    """1F1B of torch raises then; GPipe runs, and auto takes a schedule that does."""
    sizes = {"train__global_batch_size": 4, "train__micro_batch_size": 2, "parallel__pp": 4}
    (message,) = messages(job_with(**sizes, parallel__schedule="1f1b"))
    assert "2 micro-batches with parallel.pp=4: the 1f1b schedule needs one a stage" in message
    assert "train.micro_batch_size=1, or train.global_batch_size=8, or parallel.schedule=gpipe" in message
    for schedule in ("gpipe", "auto"):
        assert messages(job_with(**sizes, parallel__schedule=schedule)) == []


@pytest.mark.parametrize(
    ("schedule", "keys", "words"),
    [
        ("zbv", {"virtual_stages": 1}, "parallel.virtual_stages=1: the zbv schedule has 2 a rank"),
        ("1f1b", {"virtual_stages": 2}, "any number: parallel.schedule=looped_bfs, interleaved_1f1b, interleaved_zb"),
        ("auto", {"pp": 1, "virtual_stages": 2}, "parallel.pp=1 has no pipeline"),
        ("zbv", {"partition": [1, 1]}, "names 2 stages, but parallel.pp=2 with 2 stages a rank"),
        (
            "dualpipev",
            {},
            "3 micro-batches with parallel.pp=2: the dualpipev schedule needs one for each of its 4 stages",
        ),
        ("dualpipev", {}, "train.global_batch_size=4, or parallel.schedule=gpipe"),
        ("interleaved_1f1b", {"pp": 4}, None),
        ("interleaved_zb", {}, None),
        ("zbv", {}, None),
        ("auto", {"virtual_stages": 3, "partition": [1] * 6}, None),
        ("auto", {"partition": [1] * 6}, None),
        ("auto", {"partition": [1] * 5}, "names 5 stages, but parallel.pp=2 with 2 stages a rank"),
        ("auto", {"virtual_stages": 3, "partition": [1] * 4}, "names 4 stages, but parallel.pp=2 with 3 stages a rank"),
    ],
)
def test_stages_and_micro_batches_of_a_schedule(schedule, keys, words):
    sizes = {"train__global_batch_size": 3, "train__micro_batch_size": 1, "device": "cpu"}
    keys = {f"parallel__{key}": value for key, value in {"pp": 2, "schedule": schedule, **keys}.items()}
    found = messages(job_with(**sizes, **keys))
    assert not found if words is None else words in "\n".join(found)


@pytest.mark.parametrize(
    "argument",
    [
        "run.seed=-1",
        "run.name=a/b",
        "run.name=",
        "run.dir=",
        "train.steps=0",
        "train.stop_after=101",
        "train.sequence_length=1",
        "train.eval_every=-1",
        "train.precision=fp8",
        "train.bf16_mode=mixed",
        "train.max_skipped_steps=0",
        "optimizer.lr=-1",
        "optimizer.betas=[0.9]",
        "optimizer.betas=[0.9,1.0]",
        "optimizer.eps=0",
        "lr_schedule.min_ratio=2",
        "lr_schedule.warmup_steps=-1",
        "zero.stage=7",
        "data.vocab_size=0",
        "checkpoint.keep=-1",
        "checkpoint.resume=nevr",
        "launcher.workers=0",
        "parallel.schedule=zbvv",
        "parallel.virtual_stages=0",
        "parallel.partition=times",
        "parallel.partition=[3]",
        "parallel.partition=[3,0]",
        "parallel.partition=3",
        "device=gpu",
    ],
)
def test_out_of_range(argument):
    from gooseslo.errors import ConfigError

    with pytest.raises(ConfigError) as error:
        compose_train(["parallel.pp=2", argument])
    (fault,) = error.value.faults
    assert fault.key == argument.partition("=")[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lr_schedule.warmup_steps=101"], "lr_schedule.warmup_steps=101: longer than the run, train.steps=100"),
        (["lr_schedule=constant", "train.steps=5", "lr_schedule.warmup_steps=6"], "nearest: 5; train.stop_after"),
        (["lr_schedule=wsd", "lr_schedule.decay_steps=91"], "10 + 91 = 101 steps, but train.steps=100"),
        (["lr_schedule=wsd", "lr_schedule.decay_steps=91"], "nearest: lr_schedule.decay_steps=90"),
        (["lr_schedule=wsd", "lr_schedule.decay_steps=9", "train.steps=10"], "nearest: lr_schedule.warmup_steps=1"),
        (["lr_schedule=wsd", "lr_schedule.decay_steps=0"], "must be at least 1"),
        (["train.bf16_mode=autocast", "train.precision=fp32"], "no meaning with train.precision=fp32"),
        (["train.bf16_mode=autocast", "device=cpu"], "auto, which is fp32 on the CPU"),
    ],
)
def test_keys_that_contradict_each_other(arguments, words):
    from gooseslo.errors import ConfigError

    with pytest.raises(ConfigError) as error:
        compose_train(arguments)
    (fault,) = error.value.faults
    assert words in str(fault) and len(str(fault).splitlines()) <= 5


def test_schedules_that_fit_their_run():
    compose_train(["lr_schedule.warmup_steps=100"])
    compose_train(["lr_schedule=wsd", "lr_schedule.decay_steps=90"])
    compose_train(["lr_schedule=wsd", "train.steps=3"])


def test_a_run_that_is_only_cut_keeps_its_schedule(tmp_path):
    from gooseslo.errors import ConfigError

    assert compose_train(["train.steps=3"]).lr_schedule.warmup_steps == 10
    assert compose_train(["recipe=demo", "train.steps=3"]).lr_schedule.warmup_steps == 20
    path = tmp_path / "config.yaml"
    path.write_text("train: {steps: 50}\nlr_schedule: {warmup_steps: 30}\n")
    assert compose_train(["train.steps=3"], config_file=path).lr_schedule.warmup_steps == 30
    path.write_text("train: {steps: 20}\nlr_schedule: {warmup_steps: 30}\n")
    # A saved configuration is such a file, and repeats its run.
    assert compose_train([], config_file=path).lr_schedule.warmup_steps == 30
    with pytest.raises(ConfigError, match=r"warmup_steps=21: longer than the run, train\.steps=20"):
        compose_train(["lr_schedule.warmup_steps=21"], config_file=path)


def test_autocast_where_bf16_is_computed():
    assert messages(job_with(train__bf16_mode="autocast"), num_devices=1) == []
    assert "fp32 on the CPU" in messages(job_with(train__bf16_mode="autocast"), num_devices=0)[0]
    compose_train(["train.bf16_mode=autocast", "train.precision=bf16", "device=cpu"])


def test_text_data_needs_files():
    from gooseslo.errors import ConfigError

    with pytest.raises(ConfigError, match=r"data\.train: is required"):
        compose_train(["data=text"])
    with pytest.raises(ConfigError, match=r"data\.vocab_size=300.*data\.tokenizer"):
        compose_train(["data.vocab_size=300", "data.tokenizer=gpt2"])


GPT2 = {
    "num_layers": 12,
    "num_heads": 12,
    "num_key_value_heads": 12,
    "mlp_features": 3072,
    "num_positions": 1024,
    "vocab_size": 50257,
}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"parallel__tp": 5}, ["12 attention heads", "nearest: 4 or 6", "legal: 1, 2, 3, 4, 6, 12"]),
        ({"parallel__pp": 13}, ["12 layers", "nearest: 12"]),
        ({"train__sequence_length": 1025}, ["1024 positions", "nearest: 1024"]),
        ({"parallel__pp": 5, "parallel__partition": [3, 3, 3, 3, 3]}, ["sums to 15", "[3,3,2,2,2]"]),
        ({"data__vocab_size": 50258}, ["table of 50257"]),
        ({"parallel__tp": 12, "vocab_size": 11}, ["model.config.vocab_size=11", "parallel.tp=12", "nearest: 12"]),
    ],
)
def test_a_job_that_does_not_fit_its_model(keys, words):
    model = {name: keys.get(name, value) for name, value in GPT2.items()}
    (fault,) = check_model(job_with(**{key: value for key, value in keys.items() if key not in model}), **model)
    for word in words:
        assert word in str(fault)


def test_a_job_that_fits_its_model():
    job = job_with(parallel__tp=3, parallel__pp=5, train__sequence_length=1024, data__vocab_size=50257)
    assert check_model(job, **GPT2) == []
    assert check_model(job_with(parallel__tp=12), **(GPT2 | {"vocab_size": 12})) == []
    assert check_model(job_with(train__sequence_length=10**6), **(GPT2 | {"num_positions": None})) == []


def test_the_schema_needs_no_torch():
    code = (
        "import sys, gooseslo.schema.compose as c; c.compose_train(['recipe=demo']); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_sequence_parallelism_needs_a_length_that_tp_divides():
    job = job_with(parallel__tp=3, parallel__sequence_parallel=True, train__sequence_length=256)
    [fault] = messages(job)
    assert fault.startswith("train.sequence_length=256: is not divisible by parallel.tp=3")
    assert "nearest: 255 or 258" in fault
    assert messages(job_with(parallel__tp=3, train__sequence_length=256)) == []
    assert messages(job_with(parallel__tp=2, parallel__sequence_parallel=True)) == []


@pytest.mark.parametrize(("parts", "words"), [("some", "none, full, selective, or a number n"), (0, "=0"), (True, "=")])
def test_parts_that_are_computed_again(parts, words):
    assert words in messages(job_with(train__activation_checkpointing=parts))[0]
    assert not messages(job_with(train__activation_checkpointing=2))
