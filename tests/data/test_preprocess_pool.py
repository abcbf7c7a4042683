"""Workers: results in order, deaths noticed, nothing left behind, and next to nothing imported."""

import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from preprocess_cases import word_tokenizer

from gooseslo.data.preprocess.chunks import Placed, Position
from gooseslo.data.preprocess.encoding import Encoding
from gooseslo.data.preprocess.pool import Pool
from gooseslo.data.preprocess.work import Chunk
from gooseslo.errors import WorkerError

ROOT = Path(__file__).parents[2]
TASK = Encoding(tokenizer=word_tokenizer(), name="t0", eod_token_id=0).task("text")


def chunks(count, lines=1):
    for number in range(count):
        # Uneven, so that a later chunk is done before an earlier one.
        content = b"goose honk " * (2000 if number % 3 == 0 else 1) + b"nest\n" * lines
        chunk = Chunk(kind="txt", content=content, first_line=1 + number * lines, num_lines=lines)
        yield Placed(chunk, source=0, name="a.txt", end=Position(offset=number), consumed=0)


@pytest.mark.parametrize("workers", [1, 3])
def test_results_come_in_the_order_of_the_chunks(workers):
    with Pool(TASK, num_workers=workers) as pool:
        results = list(pool.encode(chunks(40)))
        assert [placed.end.offset for placed, _ in results] == list(range(40))
        for number, (_, encoded) in enumerate(results):
            ids = np.frombuffer(encoded.tokens, "<u2")
            assert len(ids) == 2 + 2 * (2000 if number % 3 == 0 else 1) and list(ids[-3:]) == [4, 9, 0]
            assert list(encoded.lengths) == [len(ids)]
        processes = pool.process_ids
    assert len(processes) == workers and not any(Path(f"/proc/{pid}").exists() for pid in processes)


def test_few_chunks_are_read_ahead():
    taken = itertools.count()
    with Pool(TASK, num_workers=2) as pool:
        results = pool.encode(placed for placed in chunks(1000) if next(taken) >= 0)
        next(results)
        time.sleep(0.3)
        assert next(taken) <= 1 + 2 * 4


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("busy", [True, False])
def test_a_killed_worker_ends_the_run_at_once_with_its_lines(number, busy):
    begin = time.monotonic()
    with pytest.raises(WorkerError) as caught, Pool(TASK, num_workers=2) as pool:
        others = pool.process_ids
        results = pool.encode(chunks(10**6, lines=10) if busy else iter(chunks(1)))
        if busy:
            next(results)
        os.kill(others[1], number)
        for _ in results:
            time.sleep(0.01)
        time.sleep(0.1)
        list(pool.encode(chunks(5)))
    assert time.monotonic() - begin < 10
    words = f"worker 1 (process {others[1]}) was killed by {signal.Signals(number).name}"
    assert words in str(caught.value) and caught.value.exit_code == 1
    assert ("memory" in str(caught.value)) == (number == signal.SIGKILL)
    if busy:
        assert "while it had a.txt, lines " in str(caught.value)
    assert not any(Path(f"/proc/{pid}").exists() for pid in others)


def test_an_error_of_a_worker_comes_with_its_own_traceback():
    broken = dataclasses.replace(TASK, tokenizer="{}")
    words = r"worker \d failed, while it had a.txt, line"
    with pytest.raises(WorkerError, match=words) as caught, Pool(broken, num_workers=2) as pool:
        list(pool.encode(chunks(10)))
    assert "Traceback" in str(caught.value) and "from_str" in str(caught.value)


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    program = f"""
import sys
sys.path[:0] = [{str(ROOT / "tests" / "data")!r}]
from test_preprocess_pool import Pool, TASK, chunks
with Pool(TASK, num_workers=2) as pool:
    for _ in pool.encode(chunks(10**9)):
        sys.stdout.write(" ".join(map(str, pool.process_ids)) + "\\n")
        sys.stdout.flush()
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        children = [int(word) for word in parent.stdout.readline().split()]
        assert len(children) == 2 and all(Path(f"/proc/{pid}").exists() for pid in children)
    finally:
        parent.kill()
        parent.communicate()
    deadline = time.monotonic() + 10
    while any(running(pid) for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def running(pid):
    """Whether it is there and no zombie that nobody has waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_worker_imports_no_model_library():
    heavy = "{'torch', 'transformers', 'numpy', 'pyarrow', 'rich'} & {*sys.modules}"
    code = f"import sys; import gooseslo.data.preprocess.worker; sys.exit(str({heavy}) if {heavy} else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
