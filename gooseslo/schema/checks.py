"""What a training job must satisfy before anything starts: ranges, choices, and how its groups fit one another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gooseslo.errors import Fault
from gooseslo.schema.data_checks import check_data
from gooseslo.schema.data_groups import ClassificationDataConfig
from gooseslo.schema.groups import TrainJob, WSDScheduleConfig
from gooseslo.schema.optimizers import check_optimizer
from gooseslo.schema.param_groups import check_settings
from gooseslo.schema.quoting import shortened
from gooseslo.schema.ranges import TRAIN_BOUNDS, TRAIN_CHOICES, choice_fault, range_faults
from gooseslo.schema.schedules import RULES, check_schedule_file, check_virtual_stages, is_file, stages_per_rank
from gooseslo.schema.sizes import divisors, nearest_multiples, nearest_numbers
from gooseslo.schema.topology import check_topology
from gooseslo.schema.zero import check_zero

RECOMPUTED = ("none", "full", "selective")
"""Values of train.activation_checkpointing beside numbers."""

PARTITIONS = ("uniform", "parameters", "time", "memory")
"""Values of parallel.partition beside lists and functions."""


def check_train(job: TrainJob, *, num_devices: int | None = None) -> list[Fault]:
    """Every violation that the configuration alone can show, all together.

    `num_devices`: CUDA devices to train on, 0 for the CPU, None while nobody has counted; what hangs on it is then
    left out, and a second call with the number finds it.
    """
    faults = range_faults(job, TRAIN_BOUNDS, TRAIN_CHOICES)
    faults += check_optimizer(job) or check_settings(job.optimizer, TRAIN_BOUNDS)
    faults += _check_run(job) + _check_partition(job) + check_data(job.data) + _check_sequence(job)
    faults += _check_head(job) + _check_pipeline_schedule(job) + check_zero(job)
    faults += _check_recomputation(job) + _check_precision(job, num_devices)
    sized = {"parallel.tp", "parallel.pp", "parallel.dp", "launcher.workers"}
    sized |= {"train.global_batch_size", "train.micro_batch_size", "device"}
    sized |= {"parallel.schedule", "parallel.virtual_stages"}
    if not any(fault.key in sized for fault in faults):
        faults += check_topology(job, num_devices)
    return faults


def check_schedule(job: TrainJob) -> list[Fault]:
    """Warm-up and decay that do not fit into the run; whether that was meant, `check_train` cannot know."""
    schedule, steps = job.lr_schedule, job.train.steps
    warmup, way_out = schedule.warmup_steps, "train.stop_after ends a run early and leaves its schedule as it is"
    if warmup > steps:
        rule = f"longer than the run, train.steps={steps}: the peak is never reached"
        way_out = f"nearest: {steps}; {way_out}"
        return [Fault(key="lr_schedule.warmup_steps", value=warmup, rule=rule, way_out=way_out)]
    decay = schedule.decay_steps if isinstance(schedule, WSDScheduleConfig) else None
    if decay is not None and warmup + decay > steps:
        rule = f"warm-up and decay are {warmup} + {decay} = {warmup + decay} steps, but train.steps={steps}"
        fitting = f"decay_steps={steps - warmup}" if steps > warmup else f"warmup_steps={max(0, steps - decay)}"
        way_out = f"nearest: lr_schedule.{fitting}; {way_out}"
        return [Fault(key="lr_schedule.decay_steps", value=decay, rule=rule, way_out=way_out)]
    return []


def check_model(
    job: TrainJob,
    *,
    num_layers: int,
    num_heads: int,
    num_key_value_heads: int,
    mlp_features: int,
    num_positions: int | None,
    vocab_size: int,
) -> list[Fault]:
    """How the job fits its model, whose numbers come from the real Hugging Face config; None: positions without end."""
    faults = []
    tp, pp, partition = job.parallel.tp, job.parallel.pp, job.parallel.partition
    if rule := _misfit_of_tp(tp, num_heads, num_key_value_heads, mlp_features):
        legal = [
            size
            for size in divisors(num_heads)
            if not _misfit_of_tp(size, num_heads, num_key_value_heads, mlp_features)
        ]
        way_out = f"nearest: {nearest_numbers(tp, legal)}; legal: {', '.join(map(str, legal))}"
        faults.append(Fault(key="parallel.tp", value=tp, rule=rule, way_out=way_out))
    if vocab_size < tp:
        rule = f"smaller than parallel.tp={tp}: each rank holds a part of the table"
        faults.append(Fault(key="model.config.vocab_size", value=vocab_size, rule=rule, way_out=f"nearest: {tp}"))
    num_stages = pp * stages_per_rank(job.parallel)
    if pp > num_layers:
        rule = f"more stages than the model's {num_layers} layers"
        faults.append(Fault(key="parallel.pp", value=pp, rule=rule, way_out=f"nearest: {num_layers}"))
    elif num_stages > num_layers:
        rule = f"{num_stages} stages ({num_stages // pp} a rank) for {num_layers} layers"
        way_out = f"nearest: parallel.pp={num_layers // (num_stages // pp) or 1}, or parallel.schedule=1f1b"
        faults.append(Fault(key="parallel.pp", value=pp, rule=rule, way_out=way_out))
    elif _counts_layers(partition) and sum(partition) != num_layers:
        rule = f"sums to {sum(partition)}, but the model has {num_layers} layers"
        even = [num_layers // num_stages + (stage < num_layers % num_stages) for stage in range(num_stages)]
        way_out = f"such as [{','.join(map(str, even))}]"
        faults.append(Fault(key="parallel.partition", value=shortened(partition), rule=rule, way_out=way_out))
    length = job.train.sequence_length
    if num_positions is not None and length > num_positions:
        rule = f"longer than the model's {num_positions} positions"
        faults.append(Fault(key="train.sequence_length", value=length, rule=rule, way_out=f"nearest: {num_positions}"))
    tokens = getattr(job.data, "vocab_size", None)
    if tokens is not None and tokens > vocab_size:
        rule = f"larger than the model's table of {vocab_size} tokens"
        faults.append(Fault(key="data.vocab_size", value=tokens, rule=rule, way_out=f"nearest: {vocab_size}"))
    return faults


def _misfit_of_tp(tp: int, num_heads: int, num_key_value_heads: int, mlp_features: int) -> str | None:
    """Why a model cannot be split over `tp` ranks; None where it can."""
    if num_heads % tp:
        return f"does not divide the model's {num_heads} attention heads"
    if num_key_value_heads % tp and tp % num_key_value_heads:
        return f"neither divides the model's {num_key_value_heads} key-value heads nor is a multiple of them"
    if mlp_features % tp:
        return f"does not divide the {mlp_features} features of the model's MLP"
    return None


def _check_run(job: TrainJob) -> list[Fault]:
    faults = []
    name, stop, steps = job.run.name, job.train.stop_after, job.train.steps
    if name is not None and (name.strip() in ("", ".", "..") or "/" in name or not name.isprintable()):
        rule = "must be the name of one folder, without a slash"
        way_out = "run.dir=FOLDER puts the run anywhere"
        faults.append(Fault(key="run.name", value=shortened(name), rule=rule, way_out=way_out))
    if job.run.dir == "":
        faults.append(Fault(key="run.dir", value="", rule="is empty", way_out="run.dir=null is runs/<name>"))
    if stop is not None and stop > steps:
        faults.append(Fault(key="train.stop_after", value=stop, rule=f"is beyond train.steps={steps}"))
    resume = job.checkpoint.resume
    if resume not in ("auto", "never") and not Path(resume).is_dir():
        rule = "is neither auto, never, nor a step folder that exists"
        faults.append(Fault(key="checkpoint.resume", value=shortened(resume), rule=rule))
    return faults


def _check_precision(job: TrainJob, num_devices: int | None) -> list[Fault]:
    """`train.bf16_mode` says something only where 16 bits are computed with, `train.loss_scale` where it is fp16."""
    precision, mode, scale = job.train.precision, job.train.bf16_mode, job.train.loss_scale
    on_cpu = job.device == "cpu" or (job.device == "auto" and num_devices == 0)
    computed = "auto, which is fp32 on the CPU" if precision == "auto" else precision
    faults = []
    if mode == "autocast" and precision not in ("bf16", "fp16") and (precision != "auto" or on_cpu):
        rule = f"has no meaning with train.precision={computed}"
        way_out = "give train.precision=bf16 or fp16, or leave it out"
        faults.append(Fault(key="train.bf16_mode", value=mode, rule=rule, way_out=way_out))
    if scale is not None and precision != "fp16":
        rule = f"has no meaning with train.precision={precision}: only fp16's range is so small"
        way_out = "give train.precision=fp16, or leave it out"
        faults.append(Fault(key="train.loss_scale", value=scale, rule=rule, way_out=way_out))
    return faults


def _check_pipeline_schedule(job: TrainJob) -> list[Fault]:
    name, known = job.parallel.schedule, ("auto", *RULES)
    if name not in known and not is_file(name):
        further = ", or a file NAME.csv"
        return [choice_fault("parallel.schedule", name, known, further)]
    if job.parallel.pp < 1:  # told already
        return []
    return check_schedule_file(job.parallel) or check_virtual_stages(job.parallel)


def _check_partition(job: TrainJob) -> list[Fault]:
    partition, schedule = job.parallel.partition, job.parallel.schedule
    if not isinstance(partition, list):
        if partition in PARTITIONS or (isinstance(partition, str) and ":" in partition):
            return []
        further = ", a list of layers per stage, or package.module:function"
        return [choice_fault("parallel.partition", partition, PARTITIONS, further)]
    if not _counts_layers(partition):
        rule = "each stage needs a whole number of layers, at least 1"
    elif job.parallel.pp < 1 or not (schedule in ("auto", *RULES) or is_file(schedule)):
        return []  # told already
    elif len(partition) != (stages := _num_stages(job)):
        per_rank = stages // job.parallel.pp
        more = f" with {per_rank} stages a rank" if per_rank > 1 else ""
        rule = f"names {len(partition)} stages, but parallel.pp={job.parallel.pp}{more}"
    else:
        return []
    return [Fault(key="parallel.partition", value=shortened(partition), rule=rule)]


def _check_recomputation(job: TrainJob) -> list[Fault]:
    parts = job.train.activation_checkpointing
    if parts in RECOMPUTED or (type(parts) is int and parts >= 1):
        return []
    further = ", or a number n: every n-th layer"
    return [choice_fault("train.activation_checkpointing", parts, RECOMPUTED, further)]


def _num_stages(job: TrainJob) -> int:
    return job.parallel.pp * stages_per_rank(job.parallel)


def _check_head(job: TrainJob) -> list[Fault]:
    classifies = job.model.head == "sequence-classification"
    has_classes = isinstance(job.data, ClassificationDataConfig)
    if classifies == has_classes or job.model.head not in TRAIN_CHOICES["model.head"]:
        return []
    if has_classes:
        rule, way_out = "learns classes, and model.head=causal-lm has none", "set model.head=sequence-classification"
        return [Fault(key="data", value=job.data.name, rule=rule, way_out=way_out)]
    rule, way_out = f"learns classes, and data={job.data.name} has none", "give data=classification data.train=FILE"
    return [Fault(key="model.head", value=job.model.head, rule=rule, way_out=way_out)]


def _check_sequence(job: TrainJob) -> list[Fault]:
    length, tp = job.train.sequence_length, job.parallel.tp
    if not job.parallel.sequence_parallel or tp < 1 or length % tp == 0:
        return []
    rule = f"is not divisible by parallel.tp={tp}, as parallel.sequence_parallel=true needs"
    way_out = f"nearest: {nearest_multiples(length, tp)}"
    return [Fault(key="train.sequence_length", value=length, rule=rule, way_out=way_out)]


def _counts_layers(partition: Any) -> bool:
    return isinstance(partition, list) and all(type(layers) is int and layers >= 1 for layers in partition)
