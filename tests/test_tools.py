"""The tools beside the package: the GPU check without a device and in its parity part, and the whole demo, smaller."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TOOLS = Path(__file__).parents[1] / "tools"


def test_gpu_check_without_a_device():
    environment = {**os.environ, "PYTHONPATH": str(TOOLS.parent), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, TOOLS / "gpu_check.py"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0
    assert "no CUDA device" in run.stdout


def load_gpu_check(monkeypatch):
    spec = importlib.util.spec_from_file_location("gpu_check", TOOLS / "gpu_check.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_check", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("word", ["masters on the CPU", "pipeline", "sharded"])
def test_the_runs_of_the_gpu_check(monkeypatch, tmp_path, word):
    """On the CPU in place of the device; it multiplies fp16 matrices a hundred times as slowly as bf16 ones."""
    (check,) = [each for each in load_gpu_check(monkeypatch).CHECKS if word in each.name]
    command = [
        part.replace("{folder}", str(tmp_path)).replace("=cuda", "=cpu").replace("=fp16", "=bf16")
        for part in check.command
    ]
    environment = {**os.environ, "PYTHONPATH": str(TOOLS.parent), "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("part", "said"), [("parity", "equal"), ("bf16", "of fp32's"), ("determinism", "same bits")])
def test_the_parts_of_the_gpu_check(monkeypatch, capsys, part, said):
    """On the CPU in place of the device: the cases, the tolerances and the words are the same."""
    from gooseslo.testing import parity

    case = parity.Case
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(parity, "Case", lambda **fields: case(**{**fields, "device": "cpu"}))
    module = load_gpu_check(monkeypatch)
    try:
        assert module.PARTS[part]() == 0
    finally:
        torch.use_deterministic_algorithms(False)
    assert capsys.readouterr().out.count(said) == {"parity": 14, "bf16": 2, "determinism": 2}[part]
    assert sum(check.budget_seconds for check in module.CHECKS if check.devices == 1) <= module.BUDGET_SECONDS


@pytest.mark.slow
@pytest.mark.timeout(240)  # five processes that import torch, one after the other
def test_the_demo_shows_what_training_did(tmp_path):
    """From the training to both samples, with a text and a model that take seconds."""
    (tmp_path / "a.txt").write_text("goose honk pond egg reed wing nest\n" * 400, encoding="utf-8")
    size = ["n_layer=2", "n_embd=24", "n_head=2", "n_positions=128"]
    smaller = ["data=text", "data.train=a.txt", "data.vocab_size=300", *(f"model.config.{field}" for field in size)]
    smaller += ["train.steps=2", "train.sequence_length=32", "lr_schedule.warmup_steps=0"]
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(TOOLS.parent)}
    environment = {**os.environ, **cache, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, TOOLS / "demo.py", *smaller]
    demo = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert demo.returncode == 0, demo.stderr
    output = demo.stdout
    assert output.count("$ gooseslo") == 2 and "step 2/2" in output
    samples = re.findall(r"^-{72}\n([^\n]+)\n-{72}\n(.+?)(?=^-{72})", output, re.DOTALL | re.MULTILINE)
    assert [title for title, _ in samples] == ["random weights", "trained"]
    for _, text in samples:
        assert text.startswith("def read_lines(path):\n") and len(text) > len("def read_lines(path):\n") + 1
    assert samples[0][1] != samples[1][1]
    (run,) = (tmp_path / "runs").iterdir()
    assert f"The run is in runs/{run.name}." in output and (run / "merged" / "model.safetensors").is_file()
