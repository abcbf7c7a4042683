"""The one operation gives what the written-out activation gives, and keeps less."""

import pytest
import torch
from transformers.activations import GELUActivation, NewGELUActivation

from gooseslo.engine.build import build_step
from gooseslo.engine.plan import make_plan
from gooseslo.kernels.activation import fuse_activations
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case
from gooseslo.testing.ranks import run_ranks


def kept_and_gradient(module, x):
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    x = x.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = module(x)
    output.sin().sum().backward()
    return output, x.grad, len(kept)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-14), (torch.float32, 2e-6)])
def test_values_and_gradients(dtype, limit):
    """fp32 up to a few roundings of values near 10."""
    x = torch.cat([torch.linspace(-12, 12, 4001, dtype=dtype), torch.tensor([0.0, -0.0, 1e-30, 1e30], dtype=dtype)])
    x = x[:-1] if dtype == torch.float32 else x  # its cube is no fp32 number, and the written-out form gives NaN
    expected, gradient, num_kept = kept_and_gradient(NewGELUActivation(), x)
    model = torch.nn.Sequential(NewGELUActivation())
    assert fuse_activations(model) == 1
    output, own_gradient, own_kept = kept_and_gradient(model, x)
    finite = x.abs() < 100
    torch.testing.assert_close(output, expected, rtol=limit, atol=limit)
    torch.testing.assert_close(own_gradient[finite], gradient[finite], rtol=limit, atol=limit)
    assert (own_kept, num_kept) == (1, 4)


def test_others_are_left_alone():
    model = torch.nn.Sequential(GELUActivation(), torch.nn.GELU(), torch.nn.SiLU())
    before = list(model)
    assert fuse_activations(model) == 0 and list(model) == before


def activations(rank, world_size, case):
    plan = make_plan(case.job(), num_devices=0)
    context = ParallelContext(plan.topology, rank)
    step = build_step(plan, context, case.job().train, seed=0, device=torch.device("cpu"))
    context.close()
    return [type(module).__name__ for module in step.model.stages[0].modules() if "GELU" in type(module).__name__]


def test_a_model_trains_with_it():
    case = Case(fields=tiny_fields("gpt2"), samples=2, micro_batch_size=2)
    assert run_ranks(activations, 1, case) == [["GELU"] * case.fields["n_layer"]]
