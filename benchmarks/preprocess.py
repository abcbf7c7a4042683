"""How fast `gooseslo preprocess` is, and how much memory it takes, beside what it could be held against.

    python benchmarks/preprocess.py [--megabytes 400] [--rounds 2]     speed, as ratios within one run
    python benchmarks/preprocess.py --memory --megabytes 2000         memory of the parent and of each worker

The text is the standard library's, each repetition with other words in it, so that no cache of words serves twice; the
tokenizer is a byte-level BPE trained on the library. Rounds alternate between the candidates; each takes its best.
Beside the clock's seconds stand those of all processors together, which a busy machine changes less: since each
candidate keeps every core busy, their ratio is about the one that an idle machine would show.

- raw: `encode_batch_fast` of the `tokenizers` library on all cores, documents in memory, batches of 1,000, ids unread;
- ours: the command, from its start to the renamed files, and the same without its start, which a longer text
  does not make longer (imports, the tokenizer, starting the workers);
- by the tokenizer: the command with backend=tokenizers, as it is for tokenizers that tiktoken cannot stand in for;
- one by one: as Megatron's tool works: a pool of processes, `imap` with chunks, a document a call of transformers'
  tokenizer, ids to int32.

Where a worker's time goes beside the library's own (6 MB, 1.46 million tokens, seconds of one core): encoding 2.03, ids
from Rust to lists 0.033, lists to 16-bit ids 0.026, JSON 0.012, proof that a text can be encoded 0.001. What was tried:

- ids to numbers: `array.array(code, ids)` 15 ns an id; `np.array` 16 to 18, `np.fromiter` 15 to 19, extending one array
  by each list 30. numpy need not be imported in the workers, so `array` it is.
- the largest id by `max(ids)` in the worker: 11 ns an id more; the parent asks numpy for it, over whole chunks.
- a larger word cache in the tokenizer (65 thousand to a million words, not ten thousand): no difference, or slower.
- glibc's thresholds for giving memory back (MALLOC_TRIM_THRESHOLD_ and the like), smaller batches: no difference.
- encoding outside a worker's main thread, whose allocator differs: a tenth faster (0.87 to 0.93 of raw, start apart).
- loading the plain tokenizer class without what imports torch: the start took 2.8 s, and takes 1.1.
- tiktoken in place of the library where the ids are the same (decision 0019): three times as fast.
- counting a block's newlines anew for each chunk: quadratic where chunks are small; now each line is looked for once.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from gooseslo.data.text.stdlib_corpus import StdlibCorpus
from gooseslo.data.tokenizers.tokenizer import train_tokenizer

VOCAB_SIZE = 16_000
DOCUMENT_LENGTH = 3000
"""Between the means of C4 and OpenWebText."""
ROOT = Path(__file__).parents[1]


def documents(megabytes: float) -> Iterator[str]:
    """Parts of the library's texts over and over; in each repetition one word in eight is another."""
    texts = [piece.text for piece in StdlibCorpus().pieces("train")]
    size = 0
    for repetition in range(10**6):
        for text in texts:
            changed = re.sub(r"[A-Za-z]{4,}", lambda match: varied(match[0], repetition), text)  # noqa: B023
            for document in parts(changed):
                size += len(document.encode())
                yield document
            if size >= megabytes * 1e6:
                return


def parts(text: str) -> Iterator[str]:
    """The text in documents of some DOCUMENT_LENGTH characters, cut after lines."""
    begin = 0
    while begin < len(text):
        end = text.find("\n", begin + DOCUMENT_LENGTH) + 1 or len(text)
        yield text[begin:end]
        begin = end


def varied(word: str, repetition: int) -> str:
    """The word, or with its letters turned round by an amount of its own."""
    digest = hashlib.blake2b(f"{repetition} {word}".encode(), digest_size=2).digest()
    if repetition == 0 or digest[0] % 8:
        return word
    turn = 1 + digest[1] % (len(word) - 1)
    return word[turn:] + word[:turn]


def prepare(folder: Path, megabytes: float) -> None:
    tokenizer = train_tokenizer((piece.text for piece in StdlibCorpus().pieces("train")), vocab_size=VOCAB_SIZE)
    tokenizer.save_pretrained(folder / "tokenizer")
    with (folder / "text.jsonl").open("w", encoding="utf-8") as file:
        for text in documents(megabytes):
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


@dataclass(frozen=True)
class Cost:
    """Seconds by the clock, and of all processors together, children included."""

    wall: float
    cpu: float


@contextmanager
def measured(costs: list[Cost]) -> Iterator[None]:
    wall, cpu = time.perf_counter(), cpu_seconds()
    yield
    costs.append(Cost(time.perf_counter() - wall, cpu_seconds() - cpu))


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def raw(folder: Path, costs: list[Cost]) -> None:
    """The library alone, in this process."""
    with (folder / "text.jsonl").open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    with measured(costs):
        for start in range(0, len(texts), 1000):
            tokenizer.encode_batch_fast(texts[start : start + 1000], add_special_tokens=False)


_tokenizer: PreTrainedTokenizerFast


def _load(path: str) -> None:
    global _tokenizer
    _tokenizer = PreTrainedTokenizerFast.from_pretrained(path)


def _encode(line: str) -> list[int]:
    return [*_tokenizer(json.loads(line)["text"]).input_ids, 0]


def one_by_one(folder: Path, costs: list[Cost]) -> None:
    """A tool as Megatron's."""
    lengths = []
    with measured(costs):
        pool = multiprocessing.get_context("spawn").Pool(cores(), _load, (str(folder / "tokenizer"),))
        with (folder / "text.jsonl").open(encoding="utf-8") as file, (folder / "one.bin").open("wb") as output:
            for ids in pool.imap(_encode, file, 32):
                array = np.array(ids, dtype=np.int32)
                output.write(array.tobytes(order="C"))
                lengths.append(array.size)
        pool.close()
        pool.join()


def command(folder: Path) -> list[str]:
    args = ["input=text.jsonl", "output=ours", "tokenizer=tokenizer", f"workers={cores()}", "chunk_size=1024"]
    return [sys.executable, "-m", "gooseslo", "preprocess", *args]


def ours(folder: Path, costs: list[Cost], *options: str) -> None:
    """The command, from its start to the renamed files."""
    for path in folder.glob("ours.*"):
        path.unlink()
    with measured(costs):
        subprocess.run([*command(folder), *options], cwd=folder, check=True, capture_output=True)


def by_the_tokenizer(folder: Path, costs: list[Cost]) -> None:
    """The command without tiktoken."""
    ours(folder, costs, "backend=tokenizers")


def start(folder: Path, costs: list[Cost]) -> None:
    """What the command takes for the smallest text: imports, the tokenizer, starting the workers."""
    for path in folder.glob("ours.*"):
        path.unlink()
    (folder / "small.jsonl").write_text('{"text": "goose"}\n')
    with measured(costs):
        call = [word.replace("input=text", "input=small") for word in command(folder)]
        subprocess.run(call, cwd=folder, check=True, capture_output=True)


CANDIDATES = {
    "raw": raw,
    "ours": ours,
    "by the tokenizer": by_the_tokenizer,
    "its start": start,
    "one by one": one_by_one,
}


def cores() -> int:
    return len(os.sched_getaffinity(0))


def in_a_process(name: str, folder: Path) -> Cost:
    """The cost of a candidate in a fresh process."""
    call = [sys.executable, __file__, "--candidate", name, "--folder", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "true"}
    done = subprocess.run(call, stdout=subprocess.PIPE, check=True, text=True, env=environment)
    return Cost(*json.loads(done.stdout))


def speed(folder: Path, rounds: int) -> None:
    size = sum(len(json.loads(line)["text"].encode()) for line in (folder / "text.jsonl").open(encoding="utf-8"))
    costs: dict[str, list[Cost]] = {name: [] for name in CANDIDATES}
    for _ in range(rounds):
        for name in CANDIDATES:
            costs[name].append(in_a_process(name, folder))
            sys.stderr.write(f"{name}: {costs[name][-1]}\n")
    wall = {name: min(cost.wall for cost in each) for name, each in costs.items()}
    cpu = {name: min(cost.cpu for cost in each) for name, each in costs.items()}
    for seconds in (wall, cpu):  # without what a longer text does not make longer
        seconds["ours, its start apart"] = seconds["ours"] - seconds["its start"]
    say(f"{size / 1e6:.1f} MB on {cores()} cores, best of {rounds}")
    for name in wall:
        ratios = [f"{each['raw'] / each[name]:5.2f} {each['one by one'] / each[name]:5.2f}" for each in (wall, cpu)]
        say(f"{name:<22} clock {wall[name]:7.1f} s  {ratios[0]}   processors {cpu[name]:7.1f} s  {ratios[1]}")
    say("(the two ratios: as fast as raw, as fast as one by one)")


def memory(folder: Path) -> None:
    """Largest resident memory of the parent and of the workers, less what they have before the first chunk."""
    for path in folder.glob("ours.*"):
        path.unlink()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command(folder), cwd=folder, env=environment)
    peak: dict[int, float] = {}
    while process.poll() is None:
        for pid in [process.pid, *children(process.pid)]:
            # The last value, which is the largest: between fork and exec a child shows its parent's.
            peak[pid] = resident(pid) or peak.get(pid, 0.0)
        time.sleep(0.05)
    begun = float(subprocess.run(baseline(folder), capture_output=True, check=True, text=True).stdout)
    say(f"parent: {peak.pop(process.pid):.0f} MB at most; imports and the tokenizer alone: {begun:.0f} MB")
    say("workers: " + ", ".join(f"{megabytes:.0f} MB" for megabytes in peak.values()))


def baseline(folder: Path) -> list[str]:
    code = f"""
import resource, gooseslo.data.preprocess.run
from gooseslo.data.preprocess import encoding
tokenizer = encoding.load({str(folder / "tokenizer")!r}, base_dir=__import__("pathlib").Path())
encoding.fingerprint(tokenizer)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
    return [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(ROOT)!r}]\n{code}"]


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def resident(pid: int) -> float:
    """Megabytes; 0 for a process that has gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)
    except OSError:
        return 0.0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=400)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--memory", action="store_true", help="memory in place of speed")
    parser.add_argument("--folder", type=Path, help="where the text is, or is made and kept; default: a temporary one")
    parser.add_argument("--candidate", choices=CANDIDATES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.candidate:
        costs: list[Cost] = []
        CANDIDATES[args.candidate](args.folder, costs)
        say(json.dumps([costs[0].wall, costs[0].cpu]))
        return
    folder = args.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if not (folder / "text.jsonl").exists():
            prepare(folder, args.megabytes)
        memory(folder) if args.memory else speed(folder, args.rounds)
    finally:
        if args.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
