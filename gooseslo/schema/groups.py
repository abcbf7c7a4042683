"""The typed configuration: one frozen dataclass per Hydra group, and one job per verb. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gooseslo.schema.data_groups import DataConfig, StdlibDataConfig


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    name: str | None = None
    """Name of the run folder; null: the model's name and the time."""
    dir: str | None = None
    """The run folder; null: runs/<name>."""
    seed: int = 0
    """Seed of initial weights, data order and dropout."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    name: str | None = None
    """What the option is called; part of the default run name."""
    architecture: str = "gpt2"
    """The Hugging Face `model_type`; a policy of that name must exist."""
    config: dict[str, Any] = field(default_factory=dict)
    """Fields of the architecture's Hugging Face config."""
    head: str = "causal-lm"
    """causal-lm, or sequence-classification: a class for each text, with data=classification."""


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    tp: int = 1
    """Tensor-parallel size; divides the attention heads, and divides the key-value heads or is a multiple of them."""
    pp: int = 1
    """Pipeline-parallel size; at most the number of layers."""
    dp: int | None = None
    """Data-parallel size; null: workers / (tp x pp)."""
    schedule: str = "auto"
    """auto, gpipe, 1f1b, looped_bfs, interleaved_1f1b, interleaved_zb, zbv, dualpipev, or a file NAME.csv."""
    virtual_stages: int | None = None
    """Stages a rank; null: the schedule's own, 1, or 2 for looped_bfs, the interleaved and the V schedules."""
    partition: Any = "parameters"
    """uniform, parameters, time, memory, a list of layers per stage, or package.module:function."""
    callbacks: list[str] = field(default_factory=list)
    """Import paths, package.module:Class, of classes that are told of each computation of a stage."""
    sequence_parallel: bool = False
    """Norms, dropout and residuals on shards of the sequence: less memory at the same traffic; needs tp > 1."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    steps: int = 100
    """Horizon of the run and of its LR schedule, in optimizer steps."""
    stop_after: int | None = None
    """Save and end after this step; the horizon stays."""
    global_batch_size: int = 8
    """Samples per optimizer step, over all ranks."""
    micro_batch_size: int = 2
    """Samples per forward pass of one rank."""
    sequence_length: int = 256
    """Tokens per sample."""
    precision: str = "auto"
    """auto, fp32, bf16, fp16, or fp64 (for proofs); auto is bf16 on CUDA and fp32 on the CPU."""
    bf16_mode: str = "master"
    """Of bf16 and fp16: master, 16-bit weights and fp32 masters; autocast, fp32 weights and a 16-bit forward pass."""
    loss_scale: float | None = None
    """Of fp16: the loss is multiplied by it before the backward pass; null: found while training."""
    activation_checkpointing: int | str = "none"
    """Computed again in the backward pass, to save memory: none, full, selective (attention), n: every n-th layer."""
    recompute_ahead: int = 1
    """Of these, so many of a pipeline stage while their gradient is on its way; each but the first costs memory."""
    clip_grad_norm: float = 1.0
    """Largest global gradient norm; 0: off."""
    eval_every: int = 50
    """Optimizer steps between evaluations; 0: only at the end."""
    eval_batches: int = 8
    """Global batches per evaluation; 0: no evaluation."""
    deterministic: bool = False
    """Only operations that give the same bits every time; slower on CUDA."""
    max_skipped_steps: int = 10
    """So many steps in a row without a finite loss and gradient end the run; overflows of fp16 are not counted."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    name: str = "adamw"
    """adamw, sgd or adafactor, the same as optimizer=NAME; or a class of torch.optim, such as RMSprop."""
    lr: float = 3e-4
    """Peak learning rate."""
    weight_decay: float = 0.1
    """Not applied to norms and biases, unless a group says so."""
    groups: dict[str, Any] = field(default_factory=dict)
    """Name pattern: settings of the parameters that fit it (lr, weight_decay, ...); no parameter may fit two."""
    options: dict[str, Any] = field(default_factory=dict)
    """An argument of the optimizer's class in torch.optim that has no key of its own."""


@dataclass(frozen=True, kw_only=True)
class AdamWConfig(OptimizerConfig):
    name: str = "adamw"
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    """Decay of the first and the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""


@dataclass(frozen=True, kw_only=True)
class SGDConfig(OptimizerConfig):
    name: str = "sgd"
    momentum: float = 0.0
    """0: none."""


@dataclass(frozen=True, kw_only=True)
class AdafactorConfig(OptimizerConfig):
    """Second moments by row and column alone: a few numbers in place of one for each weight."""

    name: str = "adafactor"
    lr: float = 1e-2
    weight_decay: float = 0.0
    beta2_decay: float = -0.8
    """Power of the step by which the decay of the second moment nears 1."""
    d: float = 1.0
    """An update with a larger root mean square is scaled down to it."""


@dataclass(frozen=True, kw_only=True)
class TorchOptimizerConfig(OptimizerConfig):
    """A class of torch.optim by its own name, with its own arguments."""

    name: str = "Adam"
    lr: float = 1e-3
    weight_decay: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LRScheduleConfig:
    name: str = "cosine"
    """constant, linear, cosine or wsd; the same as lr_schedule=NAME."""
    warmup_steps: int = 10
    """Steps of linear warm-up from zero; at most train.steps, where those are not cut by a later word."""


@dataclass(frozen=True, kw_only=True)
class ConstantScheduleConfig(LRScheduleConfig):
    name: str = "constant"


@dataclass(frozen=True, kw_only=True)
class LinearScheduleConfig(LRScheduleConfig):
    name: str = "linear"
    min_ratio: float = 0.1
    """Last learning rate as a fraction of the peak."""


@dataclass(frozen=True, kw_only=True)
class CosineScheduleConfig(LRScheduleConfig):
    name: str = "cosine"
    min_ratio: float = 0.1
    """Last learning rate as a fraction of the peak."""


@dataclass(frozen=True, kw_only=True)
class WSDScheduleConfig(LRScheduleConfig):
    """Warm-up, a stable peak, and a linear decay over the last steps."""

    name: str = "wsd"
    decay_steps: int | None = None
    """Steps of the decay at the end; null: a tenth of train.steps."""
    min_ratio: float = 0.1
    """Last learning rate as a fraction of the peak."""


@dataclass(frozen=True, kw_only=True)
class ZeroConfig:
    stage: int = 0
    """What the data-parallel ranks share out: 0 nothing, 1 masters and moments, 2 gradients too, 3 weights too."""
    shard_size: int | None = None
    """Data-parallel ranks that share one copy; divides dp; null: all of them."""
    backend: str = "torch"
    """Who shares out: torch, or deepspeed (fp32 weights; with parallel.pp>1 stage 1 under 1f1b or gpipe)."""
    deepspeed: dict[str, Any] = field(default_factory=dict)
    """Keys of DeepSpeed's own configuration that are passed on to it."""
    offload: bool = False
    """Masters and moments in the memory of the CPU, where the update is done; needs zero.stage=1."""


@dataclass(frozen=True, kw_only=True)
class FusionConfig:
    """Fused kernels: none yet, so the group has the one option `off` and no key."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    every: int = 100
    """Optimizer steps between saves; 0: only at the end."""
    keep: int = 3
    """Newest step folders kept; 0: all."""
    keep_every: int = 0
    """Step folders that are multiples of this are always kept; 0: none."""
    final: bool = True
    """Save at the end of the run."""
    resume: str = "auto"
    """auto, never, or a step folder."""


@dataclass(frozen=True, kw_only=True)
class LauncherConfig:
    name: str = "local"
    """local, torchrun or slurm; the same as launcher=NAME."""
    workers: int | None = None
    """Processes on this machine; null: CUDA devices, or tp x pp x (dp or 1) on CPU."""
    timeout_seconds: int = 600
    """A collective that waits longer ends the run."""
    shutdown_seconds: int = 60
    """Time that workers have to save and end after a signal."""


@dataclass(frozen=True, kw_only=True)
class TorchrunLauncherConfig(LauncherConfig):
    """Ranks that torchrun or DeepSpeed's launcher started."""

    name: str = "torchrun"


@dataclass(frozen=True, kw_only=True)
class SlurmLauncherConfig(LauncherConfig):
    """Ranks that srun started."""

    name: str = "slurm"


@dataclass(frozen=True, kw_only=True)
class WandbConfig:
    mode: str = "off"
    """off, offline (files in the run folder alone) or online; needs an account and `wandb login` to be online."""
    project: str = "gooseslo"
    """The project that the run belongs to."""


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    progress: bool = True
    """Live display on a terminal, plain lines elsewhere."""
    tensorboard: bool = False
    """Event files in the run folder, for `tensorboard --logdir runs`."""
    trace: bool = False
    """trace/rank-N.json in the run folder: what each rank computed when, for https://ui.perfetto.dev."""
    wandb: WandbConfig = field(default_factory=WandbConfig)


@dataclass(frozen=True, kw_only=True)
class DebugConfig:
    check_sync: bool = False
    """Prove around every step that ranks hold the same bits of what they hold in common; slow."""


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """Everything `gooseslo train` needs; built once, in the parent."""

    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optimizer: OptimizerConfig = field(default_factory=AdamWConfig)
    lr_schedule: LRScheduleConfig = field(default_factory=CosineScheduleConfig)
    zero: ZeroConfig = field(default_factory=ZeroConfig)
    fusion: FusionConfig = field(default_factory=FusionConfig)
    data: DataConfig = field(default_factory=StdlibDataConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)
    device: str = "auto"
    """auto, cuda or cpu."""


@dataclass(frozen=True, kw_only=True)
class PreprocessJob:
    """`gooseslo preprocess`: text to token files, or what is done with those."""

    input: Any = None
    """Files, folders, globs, a data-set folder, - (standard input), or a list of them."""
    output: str | None = None
    """Path and first part of the name of what is written: PREFIX.bin, PREFIX.idx, PREFIX.json."""
    tokenizer: str | None = None
    """Name or folder of a tokenizer."""
    train_tokenizer: int | None = None
    """In place of tokenizer: entries of a byte-level BPE trained on the input, kept in PREFIX.tokenizer."""
    text_key: str = "text"
    """Key or column of the text in a record; nested by dots: data.body."""
    format: str | None = None
    """txt or jsonl, whatever the endings of the files; null: by the ending."""
    document: str = "line"
    """What a document is in a .txt file: line, or file."""
    append_eod: bool = True
    """End each document with the end-of-document token."""
    eod_token: str | None = None
    """The end-of-document token; null: the tokenizer's eos_token."""
    special_tokens: str = "plain"
    """Text that spells a special token: plain (is text), or tokenizer (is what the tokenizer makes of it)."""
    backend: str = "auto"
    """What computes the ids: tokenizers, tiktoken (three times as fast), or auto: tiktoken where it gives the same."""
    workers: int | None = None
    """Processes that tokenise; null: one a core."""
    chunk_size: int = 1024
    """Records that a worker gets at once at most; the output does not depend on it."""
    resume: bool = False
    """Go on with a run that was interrupted."""
    on_error: str = "fail"
    """A record without a text: fail, or skip (kept in PREFIX.rejected.jsonl)."""
    merge: Any = None
    """In place of input: prefixes of prepared data to join, [A,B,C]."""
    inspect: str | None = None
    """In place of input: prefix of prepared data whose counts and first documents are shown."""


@dataclass(frozen=True, kw_only=True)
class MergeModelConfig:
    step: str = "latest"
    """Of a run folder: latest, or a number."""


@dataclass(frozen=True, kw_only=True)
class MergeJob:
    """`gooseslo merge-checkpoint`: a run or step folder to one Hub-style folder."""

    input: str | None = None
    """A run folder or one of its step folders."""
    output: str | None = None
    """The folder to write; new or empty."""
    model: MergeModelConfig = field(default_factory=MergeModelConfig)


@dataclass(frozen=True, kw_only=True)
class GenerateModelConfig:
    path: str | None = None
    """A merged, Hub-style folder."""
    init: str = "pretrained"
    """pretrained, or random: the architecture of the folder with fresh weights."""


@dataclass(frozen=True, kw_only=True)
class GenerateJob:
    """`gooseslo generate`: text on the terminal from a merged folder, in one process."""

    model: GenerateModelConfig = field(default_factory=GenerateModelConfig)
    prompt: str | None = None
    """The text to continue; null: standard input."""
    max_new_tokens: int = 64
    """Tokens to write at most."""
    do_sample: bool = False
    """Draw tokens; false: take the likeliest."""
    temperature: float = 1.0
    """Divides the logits before a draw."""
    top_p: float = 1.0
    """Draw from the likeliest tokens that together have this probability."""
    top_k: int = 50
    """Draw from this many likeliest tokens; 0: from all."""
    num_beams: int = 1
    """Beams of beam search; 1: none."""
    seed: int = 0
    """Seed of the draws."""


@dataclass(frozen=True, kw_only=True)
class DoctorJob:
    """`gooseslo doctor`: what works on this machine."""
