"""Bounds and choices of single keys, as tables, and the one loop that holds a job to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gooseslo.errors import Fault
from gooseslo.schema.keys import keys_of, listed, nearest
from gooseslo.schema.quoting import shortened

LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Bound:
    rule: str
    holds: Callable[[Any], bool]


def at_least(low: float) -> Bound:
    return Bound(f"must be at least {low}", lambda value: value >= low)


POSITIVE = Bound("must be above 0", lambda value: value > 0)
FRACTION = Bound("must be from 0 to 1", lambda value: 0 <= value <= 1)
BELOW_ONE = Bound("must be at least 0 and below 1", lambda value: 0 <= value < 1)
SEED = Bound(f"must be from 0 to {LARGEST_SEED}", lambda value: 0 <= value <= LARGEST_SEED)

TRAIN_BOUNDS: Mapping[str, Bound] = {
    "run.seed": SEED,
    "parallel.tp": at_least(1),
    "parallel.pp": at_least(1),
    "parallel.dp": at_least(1),
    "parallel.virtual_stages": at_least(1),
    "train.steps": at_least(1),
    "train.stop_after": at_least(1),
    "train.global_batch_size": at_least(1),
    "train.micro_batch_size": at_least(1),
    "train.sequence_length": Bound("must be at least 2 (one token to predict the next)", lambda value: value >= 2),
    "train.recompute_ahead": at_least(0),
    "train.clip_grad_norm": at_least(0),
    "train.eval_every": at_least(0),
    "train.eval_batches": at_least(0),
    "train.max_skipped_steps": at_least(1),
    "train.loss_scale": at_least(1),
    "optimizer.lr": at_least(0),
    "optimizer.weight_decay": at_least(0),
    "optimizer.betas": Bound(
        "must be two numbers, each at least 0 and below 1",
        lambda value: len(value) == 2 and all(0 <= beta < 1 for beta in value),
    ),
    "optimizer.eps": POSITIVE,
    "optimizer.momentum": BELOW_ONE,
    "optimizer.beta2_decay": Bound("must be at most 0", lambda value: value <= 0),
    "optimizer.d": at_least(1),
    "lr_schedule.warmup_steps": at_least(0),
    "lr_schedule.min_ratio": FRACTION,
    "lr_schedule.decay_steps": at_least(1),
    "zero.stage": Bound("must be 0, 1, 2 or 3", lambda value: value in (0, 1, 2, 3)),
    "zero.shard_size": at_least(1),
    "data.vocab_size": at_least(1),
    "data.samples": at_least(1),
    "data.workers": at_least(0),
    "checkpoint.every": at_least(0),
    "checkpoint.keep": at_least(0),
    "checkpoint.keep_every": at_least(0),
    "logging.wandb.project": Bound(
        "must be 1 to 128 characters, none of them / \\ # ? % :",
        lambda value: 1 <= len(value) <= 128 and not set(value) & set("/\\#?%:"),
    ),
    "launcher.workers": at_least(1),
    "launcher.timeout_seconds": at_least(1),
    "launcher.shutdown_seconds": at_least(1),
}

TRAIN_CHOICES: Mapping[str, tuple[str, ...]] = {
    "model.head": ("causal-lm", "sequence-classification"),
    "train.precision": ("auto", "fp32", "bf16", "fp16", "fp64"),
    "zero.backend": ("torch", "deepspeed"),
    "train.bf16_mode": ("master", "autocast"),
    "data.reader": ("mmap", "lazy", "cached"),
    "logging.wandb.mode": ("off", "offline", "online"),
    "device": ("auto", "cuda", "cpu"),
}

PREPROCESS_BOUNDS: Mapping[str, Bound] = {
    "train_tokenizer": Bound("must be at least 257: every byte, and the end of a text", lambda value: value >= 257),
    "workers": at_least(1),
    "chunk_size": at_least(1),
    "text_key": Bound("must not be empty", bool),
}

PREPROCESS_CHOICES: Mapping[str, tuple[str, ...]] = {
    "format": ("txt", "jsonl"),
    "document": ("line", "file"),
    "special_tokens": ("plain", "tokenizer"),
    "backend": ("auto", "tokenizers", "tiktoken"),
    "on_error": ("fail", "skip"),
}

GENERATE_BOUNDS: Mapping[str, Bound] = {
    "max_new_tokens": at_least(1),
    "temperature": POSITIVE,
    "top_p": Bound("must be above 0 and at most 1", lambda value: 0 < value <= 1),
    "top_k": at_least(0),
    "num_beams": at_least(1),
    "seed": SEED,
}

GENERATE_CHOICES: Mapping[str, tuple[str, ...]] = {"model.init": ("pretrained", "random")}


def range_faults(job: Any, bounds: Mapping[str, Bound], choices: Mapping[str, tuple[str, ...]]) -> list[Fault]:
    """The keys of `job` that are out of their bounds or choices; null is always allowed where the type allows it."""
    faults = []
    for key in keys_of(job):
        value: Any = job
        for part in key.split("."):
            value = getattr(value, part)
        if value is None:
            continue
        if key in bounds and not bounds[key].holds(value):
            faults.append(Fault(key=key, value=shortened(value), rule=bounds[key].rule))
        if key in choices and value not in choices[key]:
            faults.append(choice_fault(key, value, choices[key]))
    return faults


def choice_fault(key: str, value: object, choices: tuple[str, ...], further: str = "") -> Fault:
    """`value` is none of the choices; names the nearest of them."""
    closest = nearest(str(value), choices)
    way_out = f"nearest: {closest}; choices: {listed(choices)}" if closest else f"choices: {listed(choices)}"
    return Fault(key=key, value=shortened(value), rule="no such choice", way_out=way_out + further)
