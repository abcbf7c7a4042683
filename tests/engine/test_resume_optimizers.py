"""A run that stops and goes on with each kind of optimizer state: scalars, rows and columns, constructor's own."""

from dataclasses import replace

import pytest
import torch
from short_runs import run, step_folder

from gooseslo.engine.checkpoint.manifest import Manifest
from gooseslo.schema.groups import AdafactorConfig, SGDConfig, TorchOptimizerConfig
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case

GROUPS = {"*.bias": {"lr": 1e-3}}
FULL, SCALAR = "of the weight's shape", "scalar"


@pytest.mark.parametrize(
    ("optimizer", "kinds", "layout"),
    [
        (AdafactorConfig(groups=GROUPS), {"row_var": None, "col_var": None, "variance": FULL}, {"pp": 2}),
        (TorchOptimizerConfig(name="NAdam"), {"exp_avg": FULL, "exp_avg_sq": FULL, "mu_product": SCALAR}, {"tp": 2}),
        (TorchOptimizerConfig(name="ASGD", lr=0.1), {"ax": FULL, "eta": SCALAR, "mu": SCALAR}, {}),
        (TorchOptimizerConfig(name="Adagrad", groups=GROUPS), {"sum": FULL}, {}),
        (
            TorchOptimizerConfig(name="RMSprop", options={"momentum": 0.9, "centered": True}),
            {"square_avg": FULL, "grad_avg": FULL, "momentum_buffer": FULL},
            {},
        ),
        (SGDConfig(momentum=0.9, lr=0.1, groups={"*.bias": {"momentum": 0.0}}), {"momentum_buffer": FULL}, {}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_resumed_run_is_bit_equal(tmp_path, optimizer, kinds, layout):
    case = Case(fields=tiny_fields("gpt2", n_layer=2), precision="fp32", **layout)
    whole, end = run(case, tmp_path / "whole", optimizer=optimizer)
    first, _ = run(case, tmp_path / "parts", stop_after=3, optimizer=optimizer)
    folder = step_folder(tmp_path / "parts", 3)
    manifest = Manifest.read(folder)
    assert {name.partition("/")[0] for name in manifest.optimizer} == set(kinds)
    for name, entry in manifest.optimizer.items():
        what, _, weight = name.partition("/")
        if kinds[what] is not None:
            assert entry.shape == (manifest.tensors[weight].shape if kinds[what] == FULL else ()), name
    rest, end_of_parts = run(case, tmp_path / "parts", start=folder, optimizer=optimizer)
    assert first + rest == whole and len(rest) == 3
    for ones, others in zip(end, end_of_parts, strict=True):
        assert all(torch.equal(a, b) for name in ones for a, b in zip(ones[name], others[name], strict=True))


def test_adafactor_goes_on_in_another_layout(tmp_path):
    case = Case(fields=tiny_fields("gpt2", n_layer=2), precision="fp32", pp=2)
    run(case, tmp_path / "run", stop_after=3, optimizer=AdafactorConfig())
    folder = step_folder(tmp_path / "run", 3)
    one, _ = run(case, tmp_path / "run", start=folder, optimizer=AdafactorConfig())
    other, _ = run(replace(case, pp=1, dp=2), tmp_path / "other", start=folder, optimizer=AdafactorConfig())
    assert other == pytest.approx(one, rel=1e-6)
