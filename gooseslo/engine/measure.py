"""`parallel.partition=time`: the seconds of a layer of each kind and of both ends, measured here once and kept."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from gooseslo.data.cache_folder import find_or_make, folder_of
from gooseslo.engine.child import ChildError, in_child
from gooseslo.engine.probe import LayerCosts, Probe, Workload, build_stage, example, forward, layer_costs, probes
from gooseslo.engine.weights import fill_buffers
from gooseslo.errors import ConfigError, Fault
from gooseslo.policies.registry import find_policy

_FORMAT = 1
"""Of what is kept, and of how it is measured."""
_FILE = "seconds.json"
_LIMIT_SECONDS = 600.0
_WARM_UP_ROUNDS, _ROUNDS, _ROUNDS_SECONDS = 2, 5, 0.3
"""Every probe in turn, so that a machine that slows down does so for all; the least time of each counts."""


def measured_seconds(workload: Workload, device: str, *, cache_dir: Path | None) -> LayerCosts:
    """Seconds of forward and backward for one micro-batch on a device of this machine, without messages.

    Kept under `cache_dir` for all that they depend on; None: measured anew. ConfigError where they cannot be measured.
    """
    try:
        if cache_dir is None:
            return in_child(_measure, workload, device, seconds=_LIMIT_SECONDS)
        name = in_child(device_name, device, seconds=_LIMIT_SECONDS) if device == "cuda" else device_name(device)

        def make(folder: Path) -> None:
            costs = in_child(_measure, workload, device, seconds=_LIMIT_SECONDS)
            (folder / _FILE).write_text(json.dumps(vars(costs)), encoding="utf-8")

        return find_or_make(folder_of(cache_dir, "timing", _facts(workload, name)), read=_read, make=make)
    except ChildError as error:
        rule, way_out = f"the layers cannot be measured: {error}", "parallel.partition=parameters measures nothing"
        raise ConfigError(Fault(key="parallel.partition", value="time", rule=rule, way_out=way_out)) from error


def _facts(workload: Workload, device: str) -> list[object]:
    """All that the seconds depend on."""
    return [
        _FORMAT,
        workload.config.to_json_string(),
        workload.head,
        workload.tp,
        workload.samples,
        workload.sequence_length,
        repr(workload.dtypes),
        workload.recomputed,
        device,
        torch.__version__,
        transformers.__version__,
    ]


def device_name(device: str) -> str:
    """What computes; initialises CUDA for `cuda`."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    models = [line for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")]
    return models[0].partition(":")[2].strip() if models else platform.processor() or platform.machine()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _read(folder: Path) -> LayerCosts | None:
    try:
        kept = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        return LayerCosts(layers=tuple(kept["layers"]), first=kept["first"], last=kept["last"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _measure(workload: Workload, device_type: str) -> LayerCosts:
    """In a process of its own; one thread on the CPU, as each of many ranks has."""
    torch.set_num_threads(1)
    device = torch.device(device_type)
    middles, first, last = probes(workload)
    passes = {probe: _timed_pass(workload, probe, device) for probe in (*middles.values(), first, last)}
    least = dict.fromkeys(passes, float("inf"))
    end = time.perf_counter() + _ROUNDS_SECONDS
    rounds = 0
    while rounds < _WARM_UP_ROUNDS + _ROUNDS or time.perf_counter() < end:
        for probe, run in passes.items():
            seconds = run()
            if rounds >= _WARM_UP_ROUNDS:
                least[probe] = min(least[probe], seconds)
        rounds += 1
    return layer_costs(workload, least.__getitem__)


def _timed_pass(workload: Workload, probe: Probe, device: torch.device) -> Callable[[], float]:
    """A function that computes one micro-batch, and says how long it took."""
    stage = build_stage(workload, probe, device)
    with torch.no_grad():
        for parameter in stage.parameters():  # what uninitialised memory holds may be slow to compute with
            parameter.normal_(0.0, 0.02)
        fill_buffers(stage.stage.model, find_policy(workload.config.model_type, workload.head))

    def run() -> float:
        x, labels = example(workload, probe, device)
        for parameter in stage.parameters():
            parameter.grad = None
        _wait(device)
        begin = time.perf_counter()
        output = forward(stage, probe, x, labels)
        output.backward(None if probe.is_last else torch.ones_like(output))
        _wait(device)
        return time.perf_counter() - begin

    return run


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
