"""What only a CUDA device can prove, in minutes and without a network; without a device it says so and ends well.

`CHECKS` grows with the project: each is a name, a budget in seconds, and a command.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
BUDGET_SECONDS = 8 * 60
KILL_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class Check:
    """A command that must end with exit code 0 within its budget; `{folder}` is a temporary one."""

    name: str
    budget_seconds: float
    command: tuple[str, ...]
    devices: int = 1
    """Left out, and said to be, where there are fewer."""


SHORT_RUN = ("-m", "gooseslo", "train", "model=gpt2-tiny", "data=stdlib", "device=cuda", "train.eval_batches=0")

CHECKS = (
    Check(name="parity with one process", budget_seconds=90, command=(__file__, "--part", "parity")),
    Check(name="bf16 against fp32", budget_seconds=60, command=(__file__, "--part", "bf16")),
    Check(name="the same bits twice", budget_seconds=45, command=(__file__, "--part", "determinism")),
    Check(
        name="demo on one device",
        budget_seconds=135,
        command=(
            *("-m", "gooseslo", "train", "recipe=demo", "device=cuda", "run.dir={folder}/demo"),
            *("launcher.workers=1", "parallel.tp=1", "parallel.pp=1", "train.steps=100", "train.eval_every=50"),
        ),
    ),
    Check(
        name="merge",
        budget_seconds=45,
        command=("-m", "gooseslo", "merge-checkpoint", "input={folder}/demo", "output={folder}/merged"),
    ),
    Check(
        name="generate",
        budget_seconds=45,
        command=("-m", "gooseslo", "generate", "model.path={folder}/merged", "prompt=import ", "max_new_tokens=16"),
    ),
    Check(
        name="fp16, masters on the CPU, recomputation, a trace",
        budget_seconds=60,
        command=(
            *(*SHORT_RUN, "run.dir={folder}/fp16", "launcher.workers=1", "train.steps=20", "train.precision=fp16"),
            *("zero.stage=1", "zero.offload=true", "train.activation_checkpointing=full", "logging.trace=true"),
        ),
    ),
    Check(
        name="a pipeline whose recomputation goes ahead",
        budget_seconds=90,
        devices=2,
        command=(
            *(*SHORT_RUN, "run.dir={folder}/zbv", "launcher.workers=2", "train.steps=20", "parallel.pp=2"),
            *("parallel.schedule=zbv", "train.activation_checkpointing=full", "logging.trace=true"),
        ),
    ),
    Check(
        name="sharded weights",
        budget_seconds=90,
        devices=2,
        command=(
            *(*SHORT_RUN, "run.dir={folder}/sharded", "launcher.workers=2", "train.steps=20"),
            *("parallel.dp=2", "zero.stage=3", "debug.check_sync=true"),
        ),
    ),
)


def run(check: Check, folder: Path, remaining_seconds: float) -> bool:
    """Run one check; whether it passed in its time."""
    command = [sys.executable, *(part.replace("{folder}", str(folder)) for part in check.command)]
    limit = min(check.budget_seconds, remaining_seconds)
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = process.communicate(timeout=limit)
        ending = f"exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        process.terminate()  # gooseslo then ends its workers
        try:
            output, _ = process.communicate(timeout=KILL_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        ending = f"not done after {limit:.0f} s"
    passed = ending == "exit code 0"
    seconds = time.monotonic() - began
    sys.stdout.write(f"{'ok  ' if passed else 'FAIL'} {check.name} ({seconds:.1f} s)\n")
    if not passed:
        sys.stdout.write(f"{ending}; its output:\n{output}\n")
    sys.stdout.flush()
    return passed


def check_parity() -> int:
    """Train steps on the device against plain transformers there: loss, every gradient, every updated weight."""
    from gooseslo.testing.models import tiny_fields
    from gooseslo.testing.parity import Case, assert_parity, run_layout, run_reference

    for precision, loss, tensors in (("fp64", 1e-12, 1e-9), ("fp32", 1e-6, 1e-5)):
        for family, changes in (
            ("gpt2", {}),
            ("gpt2", {"vocab_size": 97}),
            ("gpt2", {"tie_word_embeddings": False}),
            ("llama", {}),
            ("llama", {"tie_word_embeddings": True}),
        ):
            fields = tiny_fields(family, **changes)
            sizes = {"samples": 8, "precision": precision, "clip_grad_norm": 0.1}
            for documents in (False, True) if not changes else (False,):
                case = Case(architecture=family, fields=fields, device="cuda", documents=documents, **sizes)
                assert_parity(run_reference(case), run_layout(case), loss=loss, tensors=tensors)
                what = "packed documents" if documents else changes or "as it is"
                sys.stdout.write(f"{family} {precision} {what}: equal\n")
    return 0


def check_bf16() -> int:
    """50 losses in both kinds of bf16 against plain transformers in fp32 on the device; masters and moments in fp32."""
    from gooseslo.testing.models import tiny_fields
    from gooseslo.testing.parity import Case, run_layout, run_reference

    steps = {"steps": 50, "optimizer": "adamw", "clip_grad_norm": 1.0, "fixed_batch": True}
    fields = tiny_fields("gpt2")
    expected = run_reference(Case(fields=fields, samples=8, precision="fp32", device="cuda", **steps)).losses
    for mode, weights in (("master", torch.bfloat16), ("autocast", torch.float32)):
        case = Case(fields=fields, samples=8, precision="bf16", bf16_mode=mode, device="cuda", **steps)
        outcome = run_layout(case)
        worst = max(abs(loss - fp32) / fp32 for loss, fp32 in zip(outcome.losses, expected, strict=True))
        dtypes = (
            {tensor.dtype for tensor in outcome.weights.values()},
            {g.dtype for g in outcome.gradients[-1].values()},
        )
        assert dtypes == ({weights}, {torch.float32}), dtypes
        assert 0 < worst <= 0.01, f"bf16 {mode}: off by {worst:.2%}"
        sys.stdout.write(f"gpt2 bf16 {mode}: losses within {worst:.2%} of fp32's\n")
    return 0


def check_determinism() -> int:
    """Two runs of the same steps under train.deterministic: every loss and weight to the last bit, nothing refused."""
    from gooseslo.engine.worker import compute_deterministically
    from gooseslo.testing.models import tiny_fields
    from gooseslo.testing.parity import Case, run_layout

    compute_deterministically()
    for precision in ("fp32", "bf16"):
        case = Case(fields=tiny_fields("gpt2"), samples=8, precision=precision, steps=10, device="cuda")
        one, other = run_layout(case), run_layout(case)
        assert one.losses == other.losses, precision
        assert all(torch.equal(one.weights[name], weight) for name, weight in other.weights.items()), precision
        sys.stdout.write(f"gpt2 {precision}: the same bits\n")
    return 0


PARTS = {"parity": check_parity, "bf16": check_bf16, "determinism": check_determinism}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="run the checks whose name holds this text")
    parser.add_argument("--part", choices=PARTS, help="run the cases of one part in this process")
    arguments = parser.parse_args()
    wanted = arguments.only or ""
    if arguments.part:
        return PARTS[arguments.part]()
    if not torch.cuda.is_available():
        sys.stdout.write("no CUDA device on this machine: nothing to check\n")
        return 0
    sys.stdout.write(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    deadline = time.monotonic() + BUDGET_SECONDS
    failed = []
    with tempfile.TemporaryDirectory(prefix="gooseslo-gpu-") as folder:
        for check in CHECKS:
            if check.devices > torch.cuda.device_count():
                sys.stdout.write(f"left out: {check.name} (needs {check.devices} devices)\n")
            elif wanted in check.name and not run(check, Path(folder), deadline - time.monotonic()):
                failed.append(check.name)
    sys.stdout.write(f"failed: {', '.join(failed)}\n" if failed else "all passed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
