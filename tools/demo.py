"""The demo: train a small GPT-2 over a 2 x 2 mesh, merge it, and show what training has done to what it writes."""

from __future__ import annotations

import argparse
import datetime
import shlex
import subprocess
import sys
import time
from pathlib import Path

PROMPT = "def read_lines(path):\n"
GENERATION = ["max_new_tokens=80", "do_sample=true", "temperature=0.7", "top_k=40", "seed=0"]
RULE = "-" * 72


def gooseslo(*arguments: str) -> None:
    """Run the command, its output on the terminal; ends the demo where it fails."""
    sys.stdout.write(f"\n$ gooseslo {shlex.join(arguments)}\n")
    sys.stdout.flush()
    exit_code = subprocess.run([sys.executable, "-m", "gooseslo", *arguments]).returncode
    if exit_code:
        sys.exit(exit_code)


def generated(merged: Path, *, trained: bool) -> str:
    """The continuation of the prompt, by the trained model or by one of the same shape with random weights."""
    init = "pretrained" if trained else "random"
    command = ["generate", f"model.path={merged}", f"model.init={init}", f"prompt={PROMPT}", *GENERATION]
    run = subprocess.run([sys.executable, "-m", "gooseslo", *command], stdout=subprocess.PIPE, text=True)
    if run.returncode:
        sys.exit(run.returncode)
    return run.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overrides", nargs="*", help="more overrides for the training, such as train.steps=20")
    overrides = parser.parse_args().overrides
    began = time.monotonic()
    name = f"demo-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    merged = Path("runs") / name / "merged"
    gooseslo("train", "recipe=demo", f"run.name={name}", *overrides)
    gooseslo("merge-checkpoint", f"input=runs/{name}", f"output={merged}")
    sys.stdout.write(f"\nThe same prompt, {PROMPT.strip()!r}, before and after the training:\n")
    for title, trained in [("random weights", False), ("trained", True)]:
        sys.stdout.write(f"\n{RULE}\n{title}\n{RULE}\n{generated(merged, trained=trained)}")
        sys.stdout.flush()
    sys.stdout.write(f"\n{RULE}\nDone in {time.monotonic() - began:.0f} s. The run is in runs/{name}.\n")


if __name__ == "__main__":
    main()
