"""`parallel.partition`: by measured time, by memory under the schedule, and by a user's function."""

import contextlib
import gc
import itertools
import json
import os
import signal
from dataclasses import replace

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from gooseslo.engine import layout, measure, memory
from gooseslo.engine.measure import measured_seconds
from gooseslo.engine.memory import RankBytes, activation_bytes, parameter_bytes
from gooseslo.engine.model_config import make_config
from gooseslo.engine.plan import make_plan
from gooseslo.engine.precision import DTYPES
from gooseslo.engine.probe import LayerCosts, Probe, Workload, build_stage
from gooseslo.errors import ConfigError
from gooseslo.kernels.activation import fuse_activations
from gooseslo.parallel.pipeline.choice import simulated
from gooseslo.parallel.recompute import attach_recomputation
from gooseslo.policies.registry import find_policy
from gooseslo.schema.compose import compose_train
from gooseslo.schema.groups import AdamWConfig, OptimizerConfig, SGDConfig, ZeroConfig
from gooseslo.testing.models import tiny_fields

FP32, BF16 = DTYPES["fp32", "master"], DTYPES["bf16", "master"]
TINY = [f"model.config.{key}={value}" for key, value in tiny_fields("gpt2").items() if value is not None]
JOB = [*TINY, "parallel.pp=2", "device=cpu", "data=synthetic", "train.sequence_length=16"]


def plan_of(*overrides, cache_dir=None, num_devices=0):
    return make_plan(compose_train([*JOB, *overrides]), num_devices=num_devices, cache_dir=cache_dir)


def workload(family="gpt2", tp=1, recomputed="none", dtypes=FP32, **fields):
    config = make_config(family, tiny_fields(family, **fields))
    sizes = {"samples": 2, "sequence_length": 16}
    return Workload(config=config, head="causal-lm", tp=tp, dtypes=dtypes, recomputed=recomputed, **sizes)


FUNCTIONS = """
def half(*, num_layers, num_stages, parameters, first, last):
    assert len(parameters) == num_layers and min(*parameters, first, last) > 0
    return (num_layers - num_stages + 1, *[1] * (num_stages - 1))
def few(**given): return [4]
def zero(**given): return [4, 0]
def many(**given): return [3, 2]
def fractions(**given): return [2.0, 2.0]
def nothing(**given): return None
def fails(**given): raise RuntimeError("no idea")
def leaves(**given): raise SystemExit(3)
def positional(layers): return [2, 2]
number = 3
"""


@pytest.fixture
def functions(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_partitions.py").write_text(FUNCTIONS)
    (tmp_path / "broken_partitions.py").write_text("1 / 0\n")


def test_a_function_of_the_user(functions):
    plan = plan_of("parallel.partition=my_partitions:half", "parallel.schedule=1f1b")
    assert plan.layers_per_stage == [3, 1] and "partition by my_partitions:half\n" in str(plan)
    assert plan_of("parallel.partition=my_partitions:half", "parallel.pp=1").layers_per_stage == [4]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("my_partitions:few", "gives 1 stages, but there are 2\n  it must give a list of 2 numbers"),
        ("my_partitions:zero", "gives [4, 0]: each stage needs a layer"),
        ("my_partitions:many", "gives [3, 2], which sums to 5, but the model has 4 layers"),
        ("my_partitions:fractions", "gives [2.0, 2.0], which is no list of whole numbers"),
        ("my_partitions:nothing", "gives None, which is no list of whole numbers"),
        ("my_partitions:fails", "fails: RuntimeError: no idea\n  it is called with num_layers, num_stages"),
        ("my_partitions:leaves", "fails: SystemExit: 3\n  it is called with num_layers, num_stages"),
        ("my_partitions:positional", "fails: TypeError: positional() got an unexpected keyword"),
        ("my_partitions:number", "is no function"),
        ("my_partitions:absent", "my_partitions has no absent"),
        ("no_such_module:half", "cannot be imported: No module named 'no_such_module'"),
        ("broken_partitions:half", "broken_partitions fails while it is imported: ZeroDivisionError"),
        ("my_partitions:", "is no import path\n  package.module:function"),
    ],
)
def test_a_function_that_cannot_be_used(functions, path, words):
    with pytest.raises(ConfigError) as caught:
        plan_of(f"parallel.partition={path}", "parallel.schedule=1f1b")
    (fault,) = caught.value.faults
    assert str(fault).startswith(f"parallel.partition={path}: ") and words in str(fault)


def test_every_kind_of_layer_and_both_ends_cost_something():
    """Every second layer is computed again: two kinds, of which that one keeps less."""
    given = workload(recomputed=2, n_embd=48, vocab_size=2048)
    seconds = measured_seconds(given, "cpu", cache_dir=None)
    assert seconds.layers[0] == seconds.layers[2] != seconds.layers[1] == seconds.layers[3]
    assert min(seconds.layers) > 0 and seconds.last > 0 and not torch.cuda.is_initialized()
    kept = activation_bytes(given)
    assert 0 < kept.layers[0] == kept.layers[2] < kept.layers[1] == kept.layers[3]


def test_the_head_takes_layers_from_its_stage(tmp_path):
    """A head that costs as much as many layers leaves the last stage one; the seconds are kept for the next run."""
    heavy = ["parallel.partition=time", "parallel.schedule=1f1b", "model.config.vocab_size=8192"]
    plan = plan_of(*heavy, cache_dir=tmp_path)
    assert plan.layers_per_stage == [3, 1] and "\npartition by time: " in str(plan)
    (kept,) = tmp_path.glob("timing-*/seconds.json")
    assert json.loads(kept.read_text())["last"] > 0
    kept.write_text(json.dumps(vars(LayerCosts(layers=(1.0,) * 4, first=2.0, last=0.0))))
    again = plan_of(*heavy, cache_dir=tmp_path)
    assert again.layers_per_stage == [1, 3]
    assert "by time: 1e+03 ms a layer, 2e+03 the embedding, 0 the head, for a micro-batch on this cpu" in str(again)


def test_what_the_seconds_depend_on_is_measured_again(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "_measure", lambda *given: LayerCosts(layers=(1.0,) * 4, first=1.0, last=1.0))
    given = workload()
    others = [replace(given, samples=1), replace(given, sequence_length=8), replace(given, tp=2)]
    others += [replace(given, dtypes=BF16), replace(given, recomputed="full"), workload(vocab_size=97)]
    for number, each in enumerate([given, given, *others], 1):
        measured_seconds(each, "cpu", cache_dir=tmp_path)
        assert len(list(tmp_path.glob("timing-*"))) == max(1, number - 1)
    monkeypatch.setattr(torch, "__version__", "0")
    measured_seconds(given, "cpu", cache_dir=tmp_path)
    monkeypatch.setattr(measure, "device_name", lambda device: "another")
    measured_seconds(given, "cpu", cache_dir=tmp_path)
    assert len(list(tmp_path.glob("timing-*"))) == 1 + len(others) + 2


def die(*given):
    os.kill(os.getpid(), signal.SIGKILL)


def fail(*given):
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    ("ending", "words"), [(die, "its process ended with signal 9"), (fail, "OutOfMemoryError: CUDA out of memory")]
)
def test_a_measurement_that_fails(tmp_path, monkeypatch, ending, words):
    monkeypatch.setattr(measure, "_measure", ending)
    with pytest.raises(ConfigError) as caught:
        plan_of("parallel.partition=time", cache_dir=tmp_path / "cache")
    assert f"parallel.partition=time: the layers cannot be measured: {words}" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class Storages(TorchDispatchMode):
    """Every storage that an operation gives, but for views of the parameters, as long as somebody else holds it."""

    def __init__(self, parameters):
        super().__init__()
        self.sizes = {}
        self.own = {p.untyped_storage()._cdata for p in parameters}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor):
                storage = each.untyped_storage()
                if storage._cdata not in self.own:
                    self.sizes[StorageWeakRef(storage)] = storage.nbytes()
        return result

    def alive(self):
        gc.collect()
        return sum({ref.cdata: size for ref, size in self.sizes.items() if not ref.expired()}.values())


@pytest.mark.parametrize("recomputed", ["none", "full", "selective"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_activations_are_those_of_a_real_layer(family, recomputed):
    """Held against the tensors that are alive after the forward pass of stock models of two and of three layers."""
    number = {"gpt2": "n_layer", "llama": "num_hidden_layers"}[family]
    alive = []
    for num_layers in (2, 3):
        given = workload(family, recomputed=recomputed, **{number: num_layers})
        model = AutoModelForCausalLM.from_config(given.config, dtype=torch.float32)
        fuse_activations(model)
        attach_recomputation(
            model, find_policy(family), recomputed, around=contextlib.nullcontext, micro_batch=lambda: 0
        )
        ids = torch.zeros(given.samples, given.sequence_length, dtype=torch.long)
        with Storages(model.parameters()) as storages:
            logits = model(input_ids=ids, use_cache=False).logits
        alive.append(storages.alive())
        del logits
    assert activation_bytes(given).layers[0] == pytest.approx(alive[1] - alive[0], rel=0.15)


def test_a_head_keeps_its_logits():
    """fp32 logits are kept once by the cross entropy; bf16 ones are cast first."""
    small, large = (activation_bytes(workload(vocab_size=size)).last for size in (96, 196))
    assert large - small == 2 * 16 * 100 * 4
    assert activation_bytes(workload(tp=2)).layers[0] < activation_bytes(workload()).layers[0]


@pytest.mark.parametrize(
    ("dtypes", "optimizer", "zero", "expected"),
    [
        (BF16, AdamWConfig(), ZeroConfig(stage=1, offload=True), (2, 4, 0)),
        (FP32, AdamWConfig(), 0, (4, 4, 8)),
        (BF16, AdamWConfig(), 0, (2, 4, 12)),
        (BF16, AdamWConfig(), 1, (2, 4, 3)),
        (BF16, AdamWConfig(), 2, (2, 1, 3)),
        (BF16, AdamWConfig(), 3, (0.5, 1, 3)),
        (FP32, SGDConfig(), 0, (4, 4, 0)),
        (FP32, SGDConfig(momentum=0.9), 1, (4, 4, 1)),
    ],
)
def test_bytes_of_a_parameter(dtypes, optimizer: OptimizerConfig, zero, expected):
    zero = zero if isinstance(zero, ZeroConfig) else ZeroConfig(stage=zero)
    found = parameter_bytes(dtypes, optimizer, zero, sharing=4)
    assert (found.weight, found.gradient, found.optimizer) == expected


def rank_bytes(schedule, num_micro):
    """The estimate of the job's own model, and of the plan's layers."""
    options = [f"parallel.schedule={schedule}", f"train.global_batch_size={num_micro}", "train.micro_batch_size=1"]
    options += ["parallel.partition=memory", "model.config.n_positions=96", "train.sequence_length=96"]
    asked = {}

    class Asked(RankBytes):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            asked["cost"] = self

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "RankBytes", Asked)
        plan = plan_of(*options)
    return asked["cost"], plan.layers_per_stage


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zbv", "interleaved_1f1b"])
def test_the_fullest_rank_is_as_small_as_can_be(schedule):
    cost, counts = rank_bytes(schedule, 8)
    every = [each for each in itertools.product(range(1, 5), repeat=len(counts)) if sum(each) == 4]
    assert sum(counts) == 4 and max(cost(counts)) == min(max(cost(each)) for each in every)


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_the_state_is_that_of_what_a_rank_holds(schedule, monkeypatch):
    """Four fp32 numbers a parameter under AdamW; the tied table on both ends, or once where one rank has both."""
    monkeypatch.setattr(memory, "activation_bytes", lambda given: LayerCosts(layers=(0.0,) * 4, first=0.0, last=0.0))
    cost, counts = rank_bytes(schedule, 8)
    layers = f"parallel.partition=[{','.join(map(str, counts))}]"
    plan = plan_of(f"parallel.schedule={schedule}", layers, "model.config.n_positions=96")
    assert cost(counts) == [16 * plan.local_parameters[rank, 0] for rank in (0, 1)]


def test_memory_follows_the_schedule():
    """Under 1f1b the first of two stages holds two micro-batches and the last one; under gpipe both hold all."""
    (plain, plain_counts), (all_held, all_counts) = rank_bytes("1f1b", 8), rank_bytes("gpipe", 8)
    assert plain_counts == [1, 3] and all_counts == [2, 2]
    assert max(plain(plain_counts)) < max(all_held(all_counts))


def test_auto_takes_what_fits_into_a_device(monkeypatch):
    """interleaved_1f1b would be next to zbv and holds more than 1f1b; without room for any, the leanest."""
    options = ["device=cuda", "train.precision=fp32", "train.global_batch_size=8", "train.micro_batch_size=1"]
    monkeypatch.setattr(layout, "_device_bytes", lambda: 1e12)
    roomy = plan_of(*options, num_devices=2)
    assert roomy.schedule == "zbv" and "too large" not in str(roomy)
    needed = {}
    for name in ("zbv", "1f1b"):
        maker = {}

        class Spy(layout.LayoutMaker):
            def __init__(self, *args, spied=maker, **kwargs):
                super().__init__(*args, **kwargs)
                spied["maker"] = self

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gooseslo.engine.plan.LayoutMaker", Spy)
            plan = plan_of(*options, f"parallel.schedule={name}", num_devices=2)
        table = simulated(name, plan.placement.virtual_stages, pp=2, num_micro=8).table
        needed[name] = max(maker["maker"]._rank_bytes(plan.placement, table)(plan.layers_per_stage))
    assert needed["1f1b"] != needed["zbv"]
    room = min(needed.values()) / 0.9
    monkeypatch.setattr(layout, "_device_bytes", lambda: room)
    tight = plan_of(*options, num_devices=2)
    assert tight.schedule == min(needed, key=needed.get) or "too large for" in str(tight)
    monkeypatch.setattr(layout, "_device_bytes", lambda: 1000.0)
    assert "; the leanest, of " in str(plan_of(*options, num_devices=2))


def test_a_probe_is_what_it_says():
    stage = build_stage(workload(), Probe(layer=2, is_last=True), torch.device("meta"))
    names = {name for name, _ in stage.stage.model.named_parameters()}
    assert "transformer.h.2.ln_1.weight" in names and "transformer.ln_f.weight" in names
    assert not any(name.startswith(("transformer.h.1", "transformer.wte")) for name in names)
