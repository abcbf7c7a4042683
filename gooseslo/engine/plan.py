"""What a run will be, worked out in the parent before any worker starts: layout, stages, schedule, parameters."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig

from gooseslo.engine.hf import empty_model
from gooseslo.engine.model_config import check_against_model, make_config
from gooseslo.engine.optimizer import optimizer_faults
from gooseslo.engine.precision import DTYPES, Dtypes
from gooseslo.errors import ConfigError, Fault
from gooseslo.parallel.lint import lint
from gooseslo.parallel.mesh import Topology
from gooseslo.parallel.names import lookup
from gooseslo.parallel.pipeline.partition import layer_ranges, partition_by_weight, partition_uniform
from gooseslo.parallel.pipeline.placement import StagePlacement
from gooseslo.parallel.tensor.apply import part_placements
from gooseslo.policies.policy import Policy
from gooseslo.policies.registry import CLASSIFICATION, find_policy
from gooseslo.schema.checks import check_train
from gooseslo.schema.groups import TrainJob
from gooseslo.schema.param_groups import check_patterns
from gooseslo.schema.schedules import RULES, chosen_schedule, stages_per_rank
from gooseslo.schema.topology import data_parallel_size, num_micro_batches


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The decisions of a run; small, and sent to every worker."""

    topology: Topology
    head: str
    """causal-lm or sequence-classification."""
    device: str
    precision: str
    """fp32, bf16, fp16 or fp64."""
    bf16_mode: str
    schedule: str
    num_micro_batches: int
    sequence_parallel: bool
    """Between a block's regions the tp ranks hold shards of the sequence; never with tp=1."""
    layers_per_stage: list[int]
    placement: StagePlacement
    num_parameters: int
    """Of the whole model, tied ones once."""
    local_parameters: dict[tuple[int, int], int]
    """(pp, tp) -> parameters that the rank holds, in all of its stages."""
    config: PretrainedConfig
    shapes: dict[str, tuple[int, ...]]
    """Every parameter's full shape, tied ones once."""

    @property
    def dtypes(self) -> Dtypes:
        return DTYPES[self.precision, self.bf16_mode]

    def fitted_to(
        self, *, end_of_text: int | None, padding: int | None = None, label_names: Sequence[str] = ()
    ) -> Plan:
        """The same plan for a model of the data's special tokens and, for a classifier, its classes.

        None leaves the config's own. ConfigError if the model has too few classes.
        """
        config = copy.deepcopy(self.config)
        if end_of_text is not None:
            config.bos_token_id = config.eos_token_id = end_of_text
        if self.head == CLASSIFICATION:
            config.pad_token_id = padding
            num_labels = int(config.num_labels or 0)
            if len(label_names) > num_labels:
                shown = ", ".join(label_names[:8]) + (", ..." if len(label_names) > 8 else "")
                rule = f"the data has {len(label_names)} classes: {shown}"
                way_out = f"set model.config.num_labels={len(label_names)}"
                raise ConfigError(Fault(key="model.config.num_labels", value=num_labels, rule=rule, way_out=way_out))
            names = [*label_names, *(f"LABEL_{number}" for number in range(len(label_names), num_labels))]
            config.id2label = dict(enumerate(names))
            config.label2id = {name: number for number, name in enumerate(names)}
        return replace(self, config=config)

    def __str__(self) -> str:
        t = self.topology
        lines = [
            f"{self.config.model_type}, {self.num_parameters:,} parameters, {self.dtypes.words} on {self.device}",
            f"tp={t.tp} pp={t.pp} dp={t.dp}: {t.world_size} workers"
            + (", sequence parallel" if self.sequence_parallel else ""),
            f"{self.num_micro_batches} micro-batches a step"
            + (f", schedule {self.schedule}" if t.pp > 1 else ", one stage"),
        ]
        layers = [f"{each.start}-{each.stop - 1}" for each in layer_ranges(self.layers_per_stage)]
        for rank in range(t.pp):
            stages = self.placement.stages_of(rank)
            held = max(self.local_parameters[rank, tp] for tp in range(t.tp))
            share = held / self.num_parameters
            what = "stage" if len(stages) == 1 else "stages"
            lines.append(
                f"{what} {', '.join(map(str, stages))}: layers {', '.join(layers[stage] for stage in stages)}, "
                f"{held:,} parameters a rank ({share:.2f})"
            )
        return "\n".join(lines)


def make_plan(job: TrainJob, *, num_devices: int) -> Plan:
    """Check the job against its real model and decide all that the workers need.

    `num_devices`: CUDA devices of this machine, 0 without. Raises ConfigError or PolicyError; computes on the meta
    device only.
    """
    faults = check_train(job, num_devices=num_devices) + check_against_model(job)
    if faults:
        raise ConfigError(faults)
    config = make_config(job.model.architecture, job.model.config, job.model.head)
    policy = find_policy(job.model.architecture, job.model.head)
    model = empty_model(config, job.model.head)
    lint(model, policy, tied=bool(config.tie_word_embeddings))
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    if faults := check_patterns(job.optimizer.groups, shapes) + optimizer_faults(job.optimizer):
        raise ConfigError(faults)

    parallel = job.parallel
    device = ("cuda" if num_devices else "cpu") if job.device == "auto" else job.device
    dp = data_parallel_size(job, num_devices)
    assert dp is not None, "check_train found no fault in the workers"
    topology = Topology(tp=parallel.tp, pp=parallel.pp, dp=dp)
    schedule = chosen_schedule(parallel)
    placement = StagePlacement(
        pp=parallel.pp, virtual_stages=stages_per_rank(parallel), is_v=parallel.pp > 1 and RULES[schedule].is_v
    )
    counts = _partition(model, policy, parallel.partition, placement.num_stages)
    return Plan(
        topology=topology,
        head=job.model.head,
        device=device,
        precision=_precision(job.train.precision, device),
        bf16_mode=job.train.bf16_mode,
        schedule=schedule,
        num_micro_batches=num_micro_batches(job, dp),
        sequence_parallel=parallel.sequence_parallel and parallel.tp > 1,
        layers_per_stage=counts,
        placement=placement,
        num_parameters=sum(p.numel() for p in model.parameters()),
        local_parameters={
            (pp, tp): local_numel(model, policy, counts, stages=placement.stages_of(pp), tp=parallel.tp, rank=tp)
            for pp in range(parallel.pp)
            for tp in range(parallel.tp)
        },
        config=config,
        shapes=shapes,
    )


def _precision(precision: str, device: str) -> str:
    if precision != "auto":
        return precision
    return "bf16" if device == "cuda" else "fp32"


def _partition(model: nn.Module, policy: Policy, partition: object, num_stages: int) -> list[int]:
    """Layers per stage, as `parallel.partition` asks: uniform, by parameters, or as given."""
    blocks = list(model.get_submodule(policy.layers).children())
    if isinstance(partition, list):
        return list(partition)
    if partition == "uniform":
        return partition_uniform(len(blocks), num_stages)

    def numel(names: tuple[str, ...]) -> int:
        return sum(p.numel() for name in names for p in model.get_submodule(name).parameters())

    weights = [float(sum(p.numel() for p in block.parameters())) for block in blocks]
    return partition_by_weight(weights, num_stages, first=numel(policy.first), last=numel(policy.last))


def local_numel(model: Any, policy: Policy, counts: list[int], *, stages: Sequence[int], tp: int, rank: int) -> int:
    """Parameters that a tp rank with these stages holds, worked out on the whole meta model."""
    layers = [layer_ranges(counts)[stage] for stage in stages]
    names = [f"{policy.layers}.{index}" for each in layers for index in each]
    names += [*(policy.first if 0 in stages else ()), *(policy.last if len(counts) - 1 in stages else ())]
    seen: set[nn.Parameter] = set()
    total = 0
    for unit in names:
        for name, module in model.get_submodule(unit).named_modules(prefix=unit):
            own = [p for p in module.parameters(recurse=False) if p not in seen]
            seen.update(own)
            split = lookup(policy.splits, name) if tp > 1 else None
            if split is None or not own:
                total += sum(p.numel() for p in own)
            else:
                parts = part_placements(module, split, name, tp=tp, rank=rank, config=model.config)
                total += sum(_numel(placement.local_shape) for placement in parts.values())
    return total


def _numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
