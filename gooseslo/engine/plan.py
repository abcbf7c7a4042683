"""What a run will be, worked out in the parent before any worker starts: layout, stages, schedule, parameters."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import PretrainedConfig

from gooseslo.engine.hf import empty_model
from gooseslo.engine.layout import LayoutMaker
from gooseslo.engine.memory import local_numel
from gooseslo.engine.model_config import check_against_model, make_config
from gooseslo.engine.optimizer import optimizer_faults
from gooseslo.engine.precision import DTYPES, Dtypes
from gooseslo.engine.probe import Workload
from gooseslo.errors import ConfigError, Fault
from gooseslo.parallel.lint import lint
from gooseslo.parallel.mesh import Topology
from gooseslo.parallel.pipeline.partition import layer_ranges
from gooseslo.parallel.pipeline.placement import StagePlacement
from gooseslo.policies.registry import CLASSIFICATION, find_policy
from gooseslo.schema.checks import check_train
from gooseslo.schema.groups import TrainJob
from gooseslo.schema.param_groups import check_patterns
from gooseslo.schema.schedule_table import Table
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
    """A schedule's name, or the path of its file."""
    schedule_reason: str
    """Why `auto` took it; empty where it was given."""
    table: Table | None
    """What each rank computes, where the schedule is a file."""
    num_micro_batches: int
    sequence_parallel: bool
    """Between a block's regions the tp ranks hold shards of the sequence; never with tp=1."""
    layers_per_stage: list[int]
    partition_basis: str
    """What the layers were dealt out by, where the numbers alone do not say it."""
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
        reason = f" (auto: {self.schedule_reason})" if self.schedule_reason else ""
        lines = [
            f"{self.config.model_type}, {self.num_parameters:,} parameters, {self.dtypes.words} on {self.device}",
            f"tp={t.tp} pp={t.pp} dp={t.dp}: {t.world_size} workers"
            + (", sequence parallel" if self.sequence_parallel else ""),
            f"{self.num_micro_batches} micro-batches a step"
            + (f", schedule {self.schedule}{reason}" if t.pp > 1 else ", one stage"),
        ]
        if self.partition_basis:
            lines.append(f"partition {self.partition_basis}")
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


def make_plan(job: TrainJob, *, num_devices: int, cache_dir: Path | None = None) -> Plan:
    """Check the job against its real model and decide all that the workers need.

    `num_devices`: CUDA devices of this machine, 0 without. Raises ConfigError or PolicyError; computes on the meta
    device, or in a process of its own what `parallel.partition=time` measures, which is kept under `cache_dir`.
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
    precision = _precision(job.train.precision, device)
    workload = Workload(
        config=config,
        head=job.model.head,
        tp=parallel.tp,
        samples=job.train.micro_batch_size,
        sequence_length=job.train.sequence_length,
        dtypes=DTYPES[precision, job.train.bf16_mode],
        recomputed=job.train.activation_checkpointing,
    )
    num_micro = num_micro_batches(job, dp)
    maker = LayoutMaker(job, model, policy, workload, dp=dp, device=device, num_micro=num_micro)
    layout = maker.make(cache_dir=cache_dir)
    counts, placement = layout.partition.layers_per_stage, layout.placement
    return Plan(
        topology=topology,
        head=job.model.head,
        device=device,
        precision=precision,
        bf16_mode=job.train.bf16_mode,
        schedule=layout.schedule,
        schedule_reason=layout.reason,
        table=layout.table,
        num_micro_batches=num_micro,
        sequence_parallel=parallel.sequence_parallel and parallel.tp > 1,
        layers_per_stage=counts,
        partition_basis=layout.partition.basis,
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
