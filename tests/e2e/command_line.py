"""Runs of the real command line, as a user starts them: a process of its own, in a folder of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
# A model and a batch so small that starting the processes is what takes the time.
SMALL = [
    "model.config.n_layer=4",
    "model.config.n_embd=48",
    "model.config.n_head=4",
    "data.vocab_size=300",
    "train.sequence_length=32",
    "train.eval_batches=2",
]


class Shell:
    """Starts `gooseslo` in one folder; the prepared data is shared by the whole session."""

    def __init__(self, folder: Path, cache: Path):
        self.folder, self.cache = folder, cache

    @property
    def environment(self):
        paths = {"PYTHONPATH": str(REPOSITORY), "XDG_CACHE_HOME": str(self.cache), "TMPDIR": str(self.temporary)}
        plain = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "true", "CUDA_VISIBLE_DEVICES": ""}
        return {**os.environ, **paths, **plain}

    @property
    def temporary(self):
        folder = self.folder / "tmp"
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def left_behind(self):
        """What runs left in the temporary folder; torch makes its compiler's cache folder there when it is imported."""
        return [path for path in self.temporary.iterdir() if not path.name.startswith("torchinductor")]

    def start(self, *args, by=(), variables=None, **options):
        """Start the command; `by` is a launcher's command line before it, `variables` add to the environment."""
        command = [*by, *args] if by else [sys.executable, "-m", "gooseslo", *args]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = {**self.environment, **(variables or {})}
        return subprocess.Popen(command, cwd=self.folder, env=environment, **{**pipes, **options})

    def __call__(self, *args, code=0, timeout=100, stdin=None):
        process = self.start(*args, stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL)
        try:
            out, err = process.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
        return out if code == 0 else err

    def metrics(self, run, kind=None):
        lines = (self.folder / "runs" / run / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return [record for record in records if kind is None or record["kind"] == kind]

    def losses(self, run):
        return [record["loss"] for record in self.metrics(run, "train")]
