"""How fast a training step is on two ranks, beside what it could be held against; ratios within one run.

    python benchmarks/training.py [--rounds 8] [--precision fp32]

A GPT-2 of 8 layers, 4 micro-batches, AdamW, gradients clipped. Every candidate is built on the same two processes, and
they take turns step by step; each takes its median. Printed: seconds of a step, and the ratio that a bar is set for.

- 1f1b, zbv: `gooseslo` at pp=2 under these schedules;
- by hand: torch's own Schedule1F1B over two halves of the same blocks (stock ones, with the activation of ours);
- stage 0, stage 1: `gooseslo` at dp=2; DeepSpeed's stage 1 on the stock model, where DeepSpeed is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from gooseslo.engine.build import build_step, by_saved_name
from gooseslo.engine.hf import empty_model
from gooseslo.engine.optimizer import build_optimizer
from gooseslo.engine.plan import make_plan
from gooseslo.kernels.activation import fuse_activations
from gooseslo.parallel.mesh import ParallelContext
from gooseslo.schema.groups import AdamWConfig
from gooseslo.testing.parity import Case
from gooseslo.testing.ranks import run_ranks

FIELDS = {
    "n_layer": 8,
    "n_embd": 384,
    "n_head": 6,
    "vocab_size": 2048,
    "n_positions": 256,
    "tie_word_embeddings": False,
}
FIELDS |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
MICRO_BATCHES, MICRO_BATCH_SIZE, LENGTH = 4, 2, 256
Step = Callable[[int], None]


def case(precision: str, **changes: Any) -> Case:
    dp = changes.get("dp", 1)
    sizes = {"samples": MICRO_BATCHES * MICRO_BATCH_SIZE * dp, "micro_batch_size": MICRO_BATCH_SIZE}
    options = {"partition": "uniform", "precision": precision, "clip_grad_norm": 1.0, "sequence_length": LENGTH}
    return Case(fields=FIELDS, **sizes, **{**options, **changes})


def ours(case: Case, rank: int) -> Step:
    plan = make_plan(case.job(), num_devices=0)
    context, job = ParallelContext(plan.topology, rank), case.job()
    step = build_step(plan, context, job.train, zero=job.zero, seed=0, device=torch.device("cpu"))
    optimizer = build_optimizer(AdamWConfig(), by_saved_name(step))
    share = case.samples // case.dp
    mine = slice(context.at.dp * share, (context.at.dp + 1) * share)

    def run(number: int) -> None:
        ids, labels = case.batch(number)
        step(ids[mine], labels[mine], step=number, update=optimizer.step)

    return run


class Half(nn.Module):
    """One of two pipeline stages, written by hand from the stock model's parts."""

    def __init__(self, model: Any, rank: int):
        super().__init__()
        body = model.transformer
        self.first, self.last = rank == 0, rank == 1
        self.blocks = nn.ModuleList(body.h[:4] if self.first else body.h[4:])
        if self.first:
            self.wte, self.wpe = body.wte, body.wpe
        else:
            self.ln_f, self.lm_head = body.ln_f, model.lm_head

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.blocks:
            out = block(x)
            x = out[0] if isinstance(out, tuple) else out
        return self.lm_head(self.ln_f(x)) if self.last else x


def by_hand(case: Case, rank: int) -> Step:
    model: Any = stock_model(case)
    fuse_activations(model)
    half = Half(model, rank)
    example = torch.zeros(MICRO_BATCH_SIZE, LENGTH, dtype=torch.long)
    hidden = torch.zeros(MICRO_BATCH_SIZE, LENGTH, FIELDS["n_embd"], requires_grad=True)
    logits = torch.zeros(MICRO_BATCH_SIZE, LENGTH, FIELDS["vocab_size"], requires_grad=True)
    given, given_on = (example, hidden) if rank == 0 else (hidden, logits)
    stage = PipelineStage(half, rank, 2, torch.device("cpu"), input_args=given, output_args=given_on)

    def loss(out: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(out.reshape(-1, out.shape[-1]), labels.flatten(), ignore_index=-100)

    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss)
    optimizer = torch.optim.AdamW(half.parameters(), lr=3e-4, fused=True)

    def run(number: int) -> None:
        ids, labels = case.batch(number)
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(ids, return_outputs=False)
        else:
            schedule.step(target=labels, losses=[], return_outputs=False)
        squares = sum(p.grad.norm().square() for p in half.parameters() if p.grad is not None)
        dist.all_reduce(squares)
        scale = (1.0 / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        for parameter in half.parameters():
            parameter.grad.mul_(scale)
        optimizer.step()

    return run


def stock_model(case: Case) -> Any:
    plan = make_plan(case.job(), num_devices=0)
    model: Any = empty_model(plan.config, plan.head).to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.02)
    return model.float().train()


def by_deepspeed(case: Case, rank: int) -> Step:
    import deepspeed

    model = stock_model(case)
    config = {
        "train_micro_batch_size_per_gpu": MICRO_BATCH_SIZE,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "zero_optimization": {"stage": 1},
        "gradient_clipping": 1.0,
        "bf16": {"enabled": case.precision == "bf16"},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    share = case.samples // case.dp

    def run(number: int) -> None:
        ids, labels = (t[rank * share : (rank + 1) * share].chunk(MICRO_BATCHES) for t in case.batch(number))
        for one, targets in zip(ids, labels):
            logits = engine(input_ids=one, use_cache=False).logits
            logits = logits.reshape(-1, logits.shape[-1]).float()  # as transformers' own loss does
            engine.backward(F.cross_entropy(logits, targets.flatten()))
            engine.step()

    return run


def times(rank: int, world_size: int, precision: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each step by candidate, on this rank."""
    torch.set_num_threads(1)
    cases = {
        "1f1b": case(precision, pp=2, schedule="1f1b"),
        "zbv": case(precision, pp=2, schedule="zbv"),
        "stage 0": case(precision, dp=2),
        "stage 1": case(precision, dp=2, zero_stage=1),
    }
    candidates = {name: ours(each, rank) for name, each in cases.items()}
    if precision == "fp32":
        candidates["by hand"] = by_hand(cases["1f1b"], rank)
    if importlib.util.find_spec("deepspeed"):
        os.environ.setdefault("LOCAL_RANK", str(rank))
        candidates["DeepSpeed stage 1"] = by_deepspeed(cases["stage 1"], rank)
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds + 1):
        for name, step in candidates.items():
            dist.barrier()
            began = time.perf_counter()
            step(number)
            dist.barrier()
            if number:  # the first is warm-up
                found[name].append(time.perf_counter() - began)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    options = parser.parse_args()
    found = run_ranks(times, 2, options.precision, options.rounds, timeout_seconds=1200)[0]
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    for name, seconds in medians.items():
        say(f"{name:<20} {seconds:8.3f} s")
    for one, other, bar in (
        ("zbv", "1f1b", 1.1),
        ("1f1b", "by hand", 0.98),
        ("stage 1", "stage 0", 1.0),
        ("stage 1", "DeepSpeed stage 1", 1.05),
    ):
        if one in medians and other in medians:
            say(f"{one} is {medians[other] / medians[one]:.3f} times as fast as {other} (bar {bar})")


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
