"""The command line: exit codes, flags, speed, and nothing created where the input is wrong."""

import gc
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from gooseslo import cli


def run_cli(*args, cwd=None, **options):
    return subprocess.run(
        [sys.executable, "-m", "gooseslo", *args], capture_output=True, text=True, timeout=60, cwd=cwd, **options
    )


@pytest.fixture
def engine(monkeypatch):
    """Stands in for the modules that the verbs end in; records what they are called with."""
    calls = []

    def module(name, **functions):
        stand_in = types.ModuleType(name)
        stand_in.__dict__.update(functions)
        monkeypatch.setitem(sys.modules, name, stand_in)

    def record(result):
        def function(*args, **kwargs):
            calls.append((args, kwargs))
            if isinstance(result, BaseException):
                raise result
            return result

        return function

    def install(result=0):
        module("gooseslo.engine.run", train=record(result))
        module("gooseslo.engine.checkpoint.merge", merge_checkpoint=record(Path("run/checkpoints/step-00000007")))
        module("gooseslo.engine.generate", generate=record(result))
        return calls

    return install


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_the_first_answer_is_quick_and_light(flag):
    heavy = "bool({'torch', 'hydra', 'omegaconf'} & {*sys.modules})"
    code = f"import sys; from gooseslo.cli import main; main(['{flag}']); sys.exit({heavy})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0
    times = []
    for _ in range(3):
        start = time.perf_counter()
        assert run_cli(flag).returncode == 0
        times.append(time.perf_counter() - start)
    assert min(times) < 0.3


def test_a_misspelt_key_is_answered_at_once_and_leaves_nothing(tmp_path):
    start = time.perf_counter()
    done = run_cli("train", "model=gpt2", "train.lrr=1e-4", cwd=tmp_path)
    assert time.perf_counter() - start < 3
    assert done.returncode == 2 and done.stdout == ""
    assert "train.lrr=1e-4" in done.stderr and "optimizer.lr" in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["trian"], "nearest: train"),
        (["xyzzy"], "verbs: train, preprocess"),
        (["train", "--hepl"], "nearest: --help"),
        (["train", "--tp=2"], "keys take no dashes"),
        (["train", "--cfg", "hydra"], "--cfg job"),
        (["train", "--config-file"], "--config-file FILE"),
        (["train", "parallel.tp=2", "parallel.pp=4", "launcher.workers=4"], "2 x 4 = 8 > 4"),
        (["merge-checkpoint", "input=absent", "output=x"], "no such folder"),
        (["generate", "prompt=honk"], "model.path: is required"),
        (["generate", "model.path=.", "temperature=0", "top_p=1.5", "num_beams=0"], "top_p=1.5: must be above 0"),
        (["doctor", "models=all"], "no such key"),
        (["plan"], "no such verb"),
    ],
)
def test_wrong_input_ends_with_two(args, words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.main(args) == 2
    out, err = capsys.readouterr()
    assert words in err and out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_interpreter_closes_leaves_the_exit_code(number):
    late = f"import atexit, os, sys; atexit.register(os.kill, os.getpid(), {int(number)})"
    code = f"{late}; sys.argv = ['gooseslo', 'trian']; from gooseslo.cli import command; sys.exit(command())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 2


def test_no_verb_shows_usage(capsys):
    assert cli.main([]) == 2
    assert "merge-checkpoint" in capsys.readouterr().err


def test_debug_shows_the_traceback_and_keeps_the_code(engine, capsys, monkeypatch):
    from gooseslo.errors import WorkerError

    monkeypatch.setenv("GOOSESLO_DEBUG", "1")
    engine(result=WorkerError("rank 1 died"))
    for args, code, words in ((["trian"], 2, "nearest: train"), (["train"], 1, "rank 1 died")):
        assert cli.main(args) == code
        out, err = capsys.readouterr()
        assert out == "" and "Traceback" in err and words in err


def test_train_gets_the_job_and_what_was_typed(engine):
    calls = engine(result=130)
    assert cli.main(["train", "run.name=2024_01", "parallel.tp=2"]) == 130
    ((job,), options), *_ = calls
    assert (job.run.name, job.parallel.tp) == ("2024_01", 2)
    assert options == {"overrides": ["run.name=2024_01", "parallel.tp=2"], "cache_dir": cli.cache_folder()}


def test_merge_and_generate_are_handed_over(engine, tmp_path):
    calls = engine()
    assert cli.main(["merge-checkpoint", f"input={tmp_path}", f"output={tmp_path / 'out'}", "model.step=7"]) == 0
    assert calls.pop() == ((tmp_path, tmp_path / "out"), {"step": "7"})
    assert cli.main(["generate", f"model.path={tmp_path}", "prompt=It's, a goose"]) == 0
    assert calls.pop()[0][0].prompt == "It's, a goose"


def test_failures_have_their_codes(engine, capsys):
    from gooseslo.errors import DataError, WorkerError

    for error, code in ((WorkerError("rank 1 died"), 1), (DataError("a.txt is empty"), 2), (KeyboardInterrupt(), 130)):
        engine(result=error)
        assert cli.main(["train"]) == code
    assert "Traceback" not in capsys.readouterr().err


def test_cfg_job_reads_back(capsys, tmp_path):
    assert cli.main(["train", "recipe=demo", "run.name=2024_01", "--cfg", "job"]) == 0
    shown = capsys.readouterr().out
    path = tmp_path / "config.yaml"
    path.write_text(shown)
    assert cli.main(["train", f"--config-file={path}", "--cfg=job"]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("verb", list(cli.VERBS))
def test_help_lists_the_keys_with_their_meaning(verb, capsys):
    from gooseslo.schema import groups
    from gooseslo.schema.keys import all_keys

    assert cli.main([verb, "--help"]) == 0
    page = capsys.readouterr().out
    for key in all_keys(getattr(groups, cli.VERBS[verb].job)):
        (line,) = (line for line in page.splitlines() if line.startswith((f"  {key} ", f"  {key}.FIELD ")))
        assert "] " in f"{line} " and not line.rstrip().endswith("]"), f"{key} has no words"


def test_doctor_finds_a_collective_that_works():
    done = run_cli("doctor")
    assert done.returncode == 0
    assert "gloo all-reduce" in done.stdout and "works" in done.stdout and "2.13" in done.stdout


@pytest.mark.parametrize("rank", ["0", "1"])
def test_of_adopted_ranks_only_the_first_speaks_of_wrong_flags(rank, capsys, monkeypatch):
    found = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in found.items():
        monkeypatch.setenv(name, value)

    def lead(place, run, report):
        return run(None)

    adopt = types.SimpleNamespace(lead=lead, follow=lambda place, report: 2)
    monkeypatch.setitem(sys.modules, "gooseslo.engine.adopt", adopt)
    assert cli.main(["train", "--hepl"]) == 2
    assert ("nearest: --help" in capsys.readouterr().err) == (rank == "0")
    for flags in (["--help"], ["--cfg", "job"]):
        assert cli.main(["train", *flags]) == 0
        assert (capsys.readouterr().out != "") == (rank == "0")


def test_garbage_is_collected_again_after_imports():
    """Also after one that fails: a training loop leaves cycles that hold tensors."""
    with pytest.raises(ImportError), cli._importing():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()
