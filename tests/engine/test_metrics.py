"""The lines of metrics.jsonl: their fields, operations and utilisation, and that lines are whole."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch
from transformers import GPT2Config

from gooseslo.engine.metrics import (
    MetricsWriter,
    TrainRecord,
    describer,
    eval_record,
    flops_per_token,
    num_lookup_parameters,
    peak_flops,
    peak_memory_bytes,
    read_metrics,
    save_record,
    train_record,
)
from gooseslo.parallel.mesh import Topology

M1 = GPT2Config(n_layer=2, n_embd=64, n_head=4, n_positions=128, vocab_size=259)
M1_PARAMETERS = 124_864
M1_FLOPS = 896_640


def record(**changes):
    fields = {
        "step": 3,
        "loss": 5.5,
        "lr": 3e-4,
        "grad_norm": 0.7,
        "tokens": 2048,
        "consumed_samples": 48,
        "consumed_tokens": 6144,
        "step_seconds": 0.5,
        "data_wait_seconds": 0.01,
        "memory_bytes": 1000,
        "skipped": False,
        "stage_seconds": (0.2, 0.25),
    }
    return TrainRecord(**{**fields, **changes})


def test_operations_per_token_of_a_small_gpt2():
    assert M1_PARAMETERS - num_lookup_parameters(M1) == 116_672
    assert flops_per_token(num_parameters=116_672, num_layers=2, width=64, sequence_length=128) == M1_FLOPS


def test_an_untied_token_table_is_only_looked_up():
    untied = GPT2Config(n_layer=2, n_embd=64, n_positions=128, vocab_size=259, tie_word_embeddings=False)
    assert num_lookup_parameters(untied) == (128 + 259) * 64


def test_utilisation_counts_all_tokens_of_the_step_against_all_devices():
    line = train_record(record(), flops_per_token=M1_FLOPS, peak=1e12, num_devices=2)
    assert line["tokens_per_second"] == 4096
    assert line["flops_per_second"] == 4096 * M1_FLOPS
    assert line["mfu"] == pytest.approx(0.001836, rel=1e-3)
    doubled = train_record(record(tokens=4096, step_seconds=1.0), flops_per_token=M1_FLOPS, peak=1e12, num_devices=2)
    assert doubled["mfu"] == line["mfu"]


def test_a_train_line_has_the_promised_fields_and_no_utilisation_on_an_unknown_device():
    topology = Topology(tp=1, pp=1, dp=2)
    plan = SimpleNamespace(
        head="causal-lm", config=M1, num_parameters=M1_PARAMETERS, device="cpu", precision="fp32", topology=topology
    )
    line = describer(plan, sequence_length=128)(record())
    assert " ".join(line) == (
        "kind step loss lr grad_norm tokens consumed_samples consumed_tokens step_seconds data_wait_seconds "
        "tokens_per_second flops_per_second mfu memory_bytes skipped stage_seconds"
    )
    assert line["stage_seconds"] == [0.2, 0.25]
    assert line["kind"] == "train" and line["mfu"] is None and line["flops_per_second"] == 4096 * M1_FLOPS


def test_an_eval_line_has_the_promised_fields():
    line = eval_record(step=7, split="valid", loss=2.0, samples=64)
    assert line == {
        "kind": "eval", "step": 7, "split": "valid", "loss": 2.0, "perplexity": math.exp(2.0), "samples": 64,
    }  # fmt: skip
    assert eval_record(step=7, split="valid", loss=1e9, samples=64)["perplexity"] == math.inf
    assert eval_record(step=7, split="valid", loss=2.0, samples=64, accuracy=0.5) == {
        "kind": "eval", "step": 7, "split": "valid", "loss": 2.0, "accuracy": 0.5, "samples": 64,
    }  # fmt: skip


@pytest.mark.parametrize(
    "device, precision, peak",
    [
        ("NVIDIA H200", "bf16", 989e12),
        ("NVIDIA H100 80GB HBM3", "fp32", 67e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5e12),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("a device of tomorrow", "fp32", None),
        ("", "fp32", None),
    ],
)
def test_the_peak_is_the_devices_own_or_unknown(device, precision, peak):
    assert peak_flops(device, precision) == peak


def test_memory_is_the_peak_of_this_process():
    before = peak_memory_bytes(torch.device("cpu"))
    held = torch.ones(64 * 1024 * 1024)  # 256 MiB
    assert held.sum() > 0
    assert 50e6 < before <= peak_memory_bytes(torch.device("cpu")) < 1e12


def test_lines_are_appended_and_readable_at_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as write:
        write({"kind": "train", "step": 1})
        assert read_metrics(path) == [{"kind": "train", "step": 1}]
        write(save_record(step=1, path=tmp_path))
    with MetricsWriter(path) as write:
        write({"kind": "eval", "step": 1})
    assert read_metrics(path) == [{"kind": "train", "step": 1}, {"kind": "eval", "step": 1}]
    assert read_metrics(tmp_path / "none") == []


def test_what_is_not_finite_is_null_since_json_has_no_word_for_it(tmp_path):
    with MetricsWriter(tmp_path / "m") as write:
        write({"kind": "train", "loss": math.nan, "grad_norm": math.inf})

    def refuse(name):
        raise AssertionError(name)

    line = json.loads((tmp_path / "m").read_text(), parse_constant=refuse)
    assert line == {"kind": "train", "loss": None, "grad_norm": None}


@pytest.mark.parametrize("rest", ["", '{"kind": "tra'])
def test_the_part_of_a_line_that_a_killed_run_left_is_cut_off(rest, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train", "step": 1}\n' + rest)
    with MetricsWriter(path) as write:
        write({"kind": "train", "step": 2})
    assert [line["step"] for line in read_metrics(path)] == [1, 2]
