"""The tools beside the package: the GPU check says so where there is no device, and its parity part is right."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).parents[1] / "tools"


def test_gpu_check_without_a_device():
    environment = {**os.environ, "PYTHONPATH": str(TOOLS.parent), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, TOOLS / "gpu_check.py"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0
    assert "no CUDA device" in run.stdout


def test_the_parity_part_of_the_gpu_check(monkeypatch, capsys):
    """On the CPU in place of the device: the cases, the tolerances and the words are the same."""
    from gooseslo.testing import parity

    case = parity.Case
    monkeypatch.setattr(parity, "Case", lambda **fields: case(**{**fields, "device": "cpu"}))
    spec = importlib.util.spec_from_file_location("gpu_check", TOOLS / "gpu_check.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_check", module)
    spec.loader.exec_module(module)
    assert module.check_parity() == 0
    assert capsys.readouterr().out.count("equal") == 6
    assert sum(check.budget_seconds for check in module.CHECKS) <= module.BUDGET_SECONDS
