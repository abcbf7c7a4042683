"""Tensor parallelism on small cases with known right values."""

import gc
from itertools import pairwise

import pytest
import torch

from gooseslo.engine.build import build_step
from gooseslo.engine.hf import empty_model
from gooseslo.engine.model import build_model
from gooseslo.engine.model_config import make_config
from gooseslo.engine.plan import make_plan
from gooseslo.errors import TopologyError
from gooseslo.parallel.mesh import ParallelContext, Topology
from gooseslo.parallel.random import RandomStreams
from gooseslo.parallel.tensor.apply import split_model
from gooseslo.parallel.tensor.layers import RowParallelLinear
from gooseslo.parallel.tensor.layouts import split_evenly, split_key_values, split_placement, split_vocabulary
from gooseslo.parallel.tensor.loss import cross_entropy_sum
from gooseslo.policies.gpt2 import GPT2
from gooseslo.policies.llama import LLAMA
from gooseslo.testing.models import tiny_fields
from gooseslo.testing.parity import Case, full_weights
from gooseslo.testing.ranks import run_ranks


def row_bias(rank, world_size, sequence_parallel):
    """The row-parallel product of one known input of four tokens, with the gradient of its bias."""
    context = ParallelContext(Topology(tp=world_size), rank)
    placement = split_placement((4, 2), 0, split_evenly(4, world_size, rank))
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0], [-1.0, 3.0]])
    bias = torch.nn.Parameter(torch.tensor([10.0, -5.0]))
    layer = RowParallelLinear(
        torch.nn.Parameter(placement.take(weight)),
        bias,
        group=context.tp_group,
        transposed=True,
        sequence_parallel=sequence_parallel,
    )
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]])
    out = layer(x[..., slice(*placement.boxes[0][0])])
    out.sum().backward()
    return out[0].tolist(), bias.grad.tolist()


ROW_OUTPUT = [[13.0, 12.0], [10.0, -5.0], [11.0, -5.0], [9.0, -2.0]]


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_row_bias_is_added_once(tp):
    """Added on each rank before the sum it would count tp times; a tp-th of it there would shrink its gradient."""
    for out, gradient in run_ranks(row_bias, tp, False):
        assert out == ROW_OUTPUT
        assert gradient == [4.0, 4.0]


@pytest.mark.parametrize("tp", [2, 4])
def test_row_bias_on_sequence_shards_sees_its_shard(tp):
    results = run_ranks(row_bias, tp, True)
    assert [row for out, _ in results for row in out] == ROW_OUTPUT
    # Their sum over the ranks is the whole gradient.
    assert [gradient for _, gradient in results] == [[4.0 / tp] * 2] * tp


def test_fused_projection_is_cut_by_blocks():
    columns = torch.arange(24).repeat(8, 1)
    parts = [
        split_placement((8, 24), 1, split_evenly(24, 2, rank, blocks=3)).take(columns)[0].tolist() for rank in (0, 1)
    ]
    assert parts[0] == [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19]
    assert parts[1] == [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23]
    full = torch.zeros(8, 24, dtype=torch.long)
    for rank in (0, 1):
        placement = split_placement((8, 24), 1, split_evenly(24, 2, rank, blocks=3))
        placement.put(placement.take(columns), full)
    assert torch.equal(full, columns)


@pytest.mark.parametrize(
    ("heads", "tp", "ranges"),
    [
        (4, 2, [(0, 8), (8, 16)]),
        (2, 2, [(0, 8), (8, 16)]),
        (2, 4, [(0, 8), (0, 8), (8, 16), (8, 16)]),
        (1, 2, [(0, 16), (0, 16)]),
    ],
)
def test_key_value_heads_are_shared_out_or_held_by_several(heads, tp, ranges):
    assert [split_key_values(16, tp, rank, heads=heads)[0] for rank in range(tp)] == ranges


@pytest.mark.parametrize("size", [1, 5, 40, 50257])
@pytest.mark.parametrize("tp", [1, 2, 3, 4])
def test_any_vocabulary_is_covered_once(size, tp):
    ranges = [split_vocabulary(size, tp, rank)[0] for rank in range(tp)]
    assert ranges[0][0] == 0 and ranges[-1][1] == size
    assert all(before[1] == after[0] for before, after in pairwise(ranges))
    assert max(b - a for a, b in ranges) - min(b - a for a, b in ranges) <= 1


def split_loss(rank, world_size, labels):
    context = ParallelContext(Topology(tp=world_size), rank)
    logits = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 30
    start, stop = split_vocabulary(7, world_size, rank)[0]
    part = logits[..., start:stop].clone().requires_grad_()
    loss = cross_entropy_sum(part, torch.tensor(labels), start=start, group=context.tp_group)
    (loss * 2).backward()
    return loss.item(), part.grad


@pytest.mark.parametrize("labels", [[[0, 6, 3], [2, -100, 5]], [[-100] * 3] * 2])
@pytest.mark.parametrize("tp", [2, 3])
def test_split_cross_entropy_equals_torch(tp, labels):
    whole = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 30
    whole.requires_grad_()
    flat = torch.nn.functional.cross_entropy(whole.flatten(0, 1), torch.tensor(labels).flatten(), reduction="sum")
    (flat * 2).backward()
    results = run_ranks(split_loss, tp, labels)
    for loss, _ in results:
        assert loss == pytest.approx(flat.item(), rel=1e-12, abs=1e-12)
    assert torch.allclose(torch.cat([gradient for _, gradient in results], dim=-1), whole.grad, atol=1e-12)


def forward_parts(rank, world_size, fields):
    """Logits of this rank, whether head and embedding are one storage, and the bytes held."""
    step = build(rank, world_size, fields)
    model = step.model.module.model
    ids = torch.tensor([[5, 6, 7]])
    logits = step.model.module(ids).detach()
    one_storage = model.lm_head.weight is model.transformer.wte.weight
    return logits, one_storage, sum(p.numel() for p in step.model.parameters().values())


def build(rank, world_size, fields, **layout):
    case = Case(fields=fields, **(layout or {"tp": world_size}), precision="fp32")
    plan = make_plan(case.job(), num_devices=0)
    context = ParallelContext(plan.topology, rank)
    return build_step(plan, context, case.job().train, seed=case.seed, device=torch.device("cpu"))


M0 = {"vocab_size": 40, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}


def test_tied_logits_are_one_vocabulary_wide():
    fields = tiny_fields("gpt2", **M0)
    [(expected, _, _)] = run_ranks(forward_parts, 1, fields)
    results = run_ranks(forward_parts, 2, fields)
    logits = torch.cat([logits for logits, _, _ in results], dim=-1)
    assert logits.shape == (1, 3, 40)
    assert torch.allclose(logits, expected, atol=1e-5)
    assert all(one_storage for _, one_storage, _ in results)


def test_a_rank_holds_its_part_and_no_more():
    fields = tiny_fields("gpt2", n_embd=256, n_layer=4, n_head=4)
    model = empty_model(make_config("gpt2", fields))
    names = {name: p.numel() for name, p in model.named_parameters()}
    replicated = sum(n for name, n in names.items() if "ln_" in name or "wpe" in name or name.endswith("c_proj.bias"))
    total = sum(names.values())
    assert (total - replicated) % 2 == 0
    for _, _, held in run_ranks(forward_parts, 2, fields):
        assert held == (total - replicated) // 2 + replicated


def full_tensors_alive(rank, world_size, fields):
    """Tensors in memory of the full shape of a split parameter, once the rank has its part."""
    step = build(rank, world_size, fields)
    placements = step.model.placements
    full = {placements[name].full_shape for name in step.model.parameters() if placements[name].dim is not None}
    gc.collect()
    tensors = [item for item in gc.get_objects() if isinstance(item, torch.Tensor) and item.device.type == "cpu"]
    return [tuple(tensor.shape) for tensor in tensors if tuple(tensor.shape) in full]


def test_no_full_tensor_survives_the_split():
    fields = tiny_fields("gpt2", n_embd=256, n_layer=4, n_head=4)
    assert run_ranks(full_tensors_alive, 2, fields) == [[], []]


def peak_bytes(rank, world_size, fields):
    """The most that building the rank's model ever had allocated, by the profiler's account of the allocator."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step = build(rank, world_size, fields)
    held = peak = 0
    changes = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    # The gradient buffer doubles what the parameters take; both are split alike.
    assert peak >= 2 * sum(p.numel() * p.element_size() for p in step.model.parameters().values())
    return peak


def test_the_peak_while_loading_falls_with_tp():
    fields = tiny_fields("gpt2", n_embd=256, n_layer=4, n_head=4)
    [alone] = run_ranks(peak_bytes, 1, fields)
    # Keeping the whole units that are drawn would give 0.75.
    assert max(run_ranks(peak_bytes, 2, fields)) < 0.6 * alone


def initial(rank, world_size, fields, layout):
    step = build(rank, world_size, fields, **layout)
    parameters = step.model.parameters()
    split = {name for name in parameters if step.model.placements[name].dim is not None}
    local = {name: p.detach().clone() for name, p in parameters.items() if name in split and p.dim() == 2}
    return full_weights(step), local


@pytest.mark.parametrize("layout", [{"tp": 2}, {"tp": 4}, {"pp": 2}, {"dp": 2}, {"tp": 2, "pp": 2}])
def test_initial_weights_do_not_depend_on_the_layout(layout):
    fields = tiny_fields("gpt2", **{**M0, "n_head": 4})
    expected, _ = run_ranks(initial, 1, fields, {"tp": 1})[0]
    world_size = 1
    for size in layout.values():
        world_size *= size
    results = run_ranks(initial, world_size, fields, layout)
    for full, _ in results:
        assert full.keys() == expected.keys()
        assert all(torch.equal(full[name], expected[name]) for name in expected)
    if layout.get("tp", 1) > 1:
        shards, others = results[0][1], results[1][1]
        assert shards and all(not torch.equal(shards[name], others[name]) for name in shards)


def test_other_seeds_give_other_weights_and_stock_statistics():
    fields = tiny_fields("gpt2", n_embd=128, n_layer=2, n_head=4, vocab_size=512)
    weights, _ = run_ranks(initial, 1, fields, {"tp": 1})[0]
    assert weights["transformer.wte.weight"].std().item() == pytest.approx(0.02, rel=0.02)
    # GPT-2 scales the projections into the residual stream by 1/sqrt(2 layers).
    assert weights["transformer.h.1.mlp.c_proj.weight"].std().item() == pytest.approx(0.02 / 2, rel=0.02)
    assert (
        weights["transformer.h.0.ln_1.weight"].eq(1).all() and weights["transformer.h.0.attn.c_attn.bias"].eq(0).all()
    )


def test_a_size_that_does_not_divide_is_refused():
    model = empty_model(make_config("gpt2", tiny_fields("gpt2", n_head=4, n_embd=24)))
    with pytest.raises(TopologyError, match=r"parallel\.tp=3"):
        split_model(model, GPT2, tp=3, rank=0, group=None)


def test_key_value_heads_that_do_not_fit_are_refused():
    model = empty_model(make_config("llama", tiny_fields("llama", num_attention_heads=12, num_key_value_heads=4)))
    with pytest.raises(TopologyError, match=r"parallel\.tp=6: neither divides the 4 heads"):
        split_model(model, LLAMA, tp=6, rank=0, group=None)


def frequencies(rank, world_size):
    """The rotary frequencies of each stage of a bf16 model, and the dtype of its weights."""
    context = ParallelContext(Topology(pp=world_size), rank)
    model = build_model(
        make_config("llama", tiny_fields("llama", head_dim=64)),
        LLAMA,
        context,
        layers_per_stage=[2, 2],
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        seed=0,
        streams=RandomStreams(0),
    ).module.model
    context.close()
    return model.model.rotary_emb.inv_freq, {parameter.dtype for parameter in model.parameters()}


def test_rotary_frequencies_keep_their_precision_on_every_stage():
    """Rounded to bf16 they would turn far positions by the wrong angle."""
    expected = 1.0 / (10000.0 ** (torch.arange(0, 64, 2).float() / 64))
    for inv_freq, dtypes in run_ranks(frequencies, 2):
        assert inv_freq.dtype == torch.float32 and torch.equal(inv_freq, expected)
        assert dtypes == {torch.bfloat16}


def eager_logits(rank, world_size, fields):
    """Logits of this rank's part of the vocabulary, by the attention that repeats key-value heads itself."""
    case = Case(architecture="llama", fields=fields, tp=world_size)
    plan = make_plan(case.job(), num_devices=0)
    plan.config._attn_implementation = "eager"
    context = ParallelContext(plan.topology, rank)
    step = build_step(plan, context, case.job().train, seed=0, device=torch.device("cpu"))
    logits = step.model.module(torch.tensor([[5, 6, 7]])).detach()
    context.close()
    return logits


@pytest.mark.parametrize("tp", [2, 4])
def test_each_rank_repeats_a_key_value_head_for_its_own_query_heads(tp):
    fields = tiny_fields("llama")
    [expected] = run_ranks(eager_logits, 1, fields)
    assert torch.allclose(torch.cat(run_ranks(eager_logits, tp, fields), dim=-1), expected, rtol=1e-9, atol=1e-12)
