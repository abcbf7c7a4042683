"""A run that stops and goes on, in bf16 and from one precision to another: by build_trainer, as the workers do it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from short_runs import run, step_folder
from transformers import AutoModelForCausalLM

from gooseslo.engine.checkpoint.manifest import Manifest
from gooseslo.engine.checkpoint.merge import merge_checkpoint
from gooseslo.schema.groups import AdamWConfig
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case

GROUPS = {"*.bias": {"lr": 1e-3}, "transformer.wte.weight": {"weight_decay": 0.0, "betas": [0.8, 0.9]}}


def case_of(precision, mode="master", **layout):
    return Case(fields=tiny_fields("gpt2", n_layer=2), precision=precision, bf16_mode=mode, **layout)


@pytest.mark.parametrize(
    ("precision", "mode", "layout"),
    [
        ("bf16", "master", {}),
        ("bf16", "master", {"pp": 2}),
        ("bf16", "autocast", {}),
        ("bf16", "autocast", {"pp": 2}),
        ("fp16", "master", {"pp": 2}),
        ("fp16", "autocast", {}),
    ],
)
def test_a_resumed_run_in_16_bits_is_bit_equal(tmp_path, precision, mode, layout):
    case = case_of(precision, mode, **layout)
    whole, end = run(case, tmp_path / "whole", optimizer=AdamWConfig(lr=1e-2, groups=GROUPS))
    first, _ = run(case, tmp_path / "parts", stop_after=3, optimizer=AdamWConfig(lr=1e-2, groups=GROUPS))
    rest, end_of_parts = run(
        case,
        tmp_path / "parts",
        start=step_folder(tmp_path / "parts", 3),
        optimizer=AdamWConfig(lr=1e-2, groups=GROUPS),
    )
    assert first + rest == whole and len(rest) == 3
    for ones, others in zip(end, end_of_parts, strict=True):
        assert all(torch.equal(a, b) for name in ones for a, b in zip(ones[name], others[name], strict=True))


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A bf16 run with masters and one in fp32, stopped at step 3 of 6: (folder, every rank's state at the stop)."""

    def make(name, case):
        run_dir = tmp_path_factory.mktemp("begun") / name
        losses, state = run(case, run_dir, stop_after=3)
        return step_folder(run_dir, 3), state[0], losses

    return {
        "master": make("master", case_of("bf16")),
        "autocast": make("autocast", case_of("bf16", "autocast")),
        "fp32": make("fp32", case_of("fp32")),
    }


PRECISIONS = {"master": ("bf16", "master"), "autocast": ("bf16", "autocast"), "fp32": ("fp32",), "fp64": ("fp64",)}


@pytest.mark.parametrize(
    ("old", "new"),
    [("fp32", "master"), ("master", "fp32"), ("master", "autocast"), ("autocast", "master"), ("master", "fp64")],
)
def test_another_precision_goes_on_from_the_most_exact_values(begun, tmp_path, old, new):
    """Stopping where it starts: nothing is trained, so what was loaded is what is seen."""
    start, state, _ = begun[old]
    _, [loaded] = run(case_of(*PRECISIONS[new]), tmp_path / "run", start=start, stop_after=3)
    for name, (weight, stepped) in loaded.items():
        exact = state[name][1]
        assert torch.equal(stepped, exact.to(stepped.dtype)), name
        assert torch.equal(weight, stepped.to(weight.dtype)), name
    assert any(not torch.equal(w.to(s.dtype), s) for w, s in loaded.values()) == (new == "master")


def test_a_changed_precision_trains_on(begun, tmp_path):
    """bf16 to fp32 and back: the losses stay those of fp32, to the rounding of bf16."""
    start, _, first = begun["fp32"]
    fp32, _ = run(case_of("fp32"), tmp_path / "fp32", start=start)
    for new in ("master", "autocast"):
        losses, _ = run(case_of(*PRECISIONS[new]), tmp_path / new, start=start)
        assert losses == pytest.approx(fp32, rel=0.01) and len(losses) == 3
    losses, _ = run(case_of("fp32"), tmp_path / "back", start=begun["master"][0])
    assert losses == pytest.approx(fp32, rel=0.01)
    assert first == pytest.approx(begun["master"][2], rel=0.01)


@pytest.mark.parametrize("layout", [{"tp": 2}, {"pp": 2}, {"dp": 2}])
def test_another_layout_reads_the_same_masters(begun, tmp_path, layout):
    start, state, _ = begun["master"]
    case = case_of("bf16", **layout)
    _, loaded = run(case, tmp_path / "run", start=start, stop_after=3)
    run_again = step_folder(tmp_path / "run", 3)
    assert not run_again.exists(), "there was nothing to train, so nothing to save"
    for rank in loaded:
        for name, (weight, stepped) in rank.items():
            assert torch.equal(stepped.to(torch.bfloat16), weight)
            if stepped.shape == state[name][1].shape:
                assert torch.equal(stepped, state[name][1]), name
    going_on, _ = run(case, tmp_path / "run", start=start)
    alone, _ = run(case_of("bf16"), tmp_path / "alone", start=start)
    assert going_on == pytest.approx(alone, rel=2**-9)


def test_a_checkpoint_holds_bf16_weights_and_fp32_masters(begun, tmp_path):
    folder = begun["master"][0]
    manifest = Manifest.read(folder)
    assert {entry.dtype for entry in manifest.tensors.values()} == {"bfloat16"}
    assert {entry.dtype for entry in manifest.optimizer.values()} == {"float32"}
    kinds = {name.partition("/")[0] for name in manifest.optimizer}
    assert kinds == {"master", "exp_avg", "exp_avg_sq"}
    assert {name.partition("/")[2] for name in manifest.optimizer} == set(manifest.tensors)
    merge_checkpoint(folder, tmp_path / "merged")
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["dtype"] == "bfloat16"
    with safe_open(tmp_path / "merged" / "model.safetensors", framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not any(report.values()) and model.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["autocast", "fp32"])
def test_fp32_weights_need_no_masters(begun, name):
    manifest = Manifest.read(begun[name][0])
    assert {entry.dtype for entry in manifest.tensors.values()} == {"float32"}
    assert not any(key.startswith("master/") for key in manifest.optimizer)
    assert json.loads((Path(begun[name][0]) / "config.json").read_text())["dtype"] == "float32"
