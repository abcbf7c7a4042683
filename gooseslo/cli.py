"""The command line: one verb, one function. Each verb imports what it needs, so that --help needs next to nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import gc
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gooseslo import __version__
from gooseslo.errors import ConfigError, Fault, GooseError

USAGE = """\
usage: gooseslo VERB [key=value | group=option | ~key] ... [--config-file FILE] [--cfg job] [--help]

Trains stock Hugging Face transformers over a tensor x pipeline x data mesh.

{verbs}

  gooseslo train model=gpt2 parallel.tp=2 parallel.pp=2
  gooseslo VERB --help       its keys, their types and defaults
"""

LOCAL_RANK = re.compile(r"--local[-_]rank=\d+")
"""What DeepSpeed's launcher puts before the arguments; the environment says the same."""

FLAGS = ("--help", "--config-file", "--cfg")


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What a verb's arguments ask for beside the overrides."""

    overrides: list[str]
    config_file: Path | None = None
    show_config: bool = False
    show_help: bool = False


def train(flags: Flags, args: list[str]) -> int:
    """Spawn the workers, build the mesh, train, checkpoint; adopts ranks that a launcher started."""
    from gooseslo.engine.interrupt import raised

    if flags.show_config:
        return _show(_compose(flags, None))
    with raised():
        return _run(_compose(flags, None), args)


def _train_adopted(place: Any, args: list[str]) -> int:
    """`train` in one of the ranks that a launcher started: only rank 0 speaks, of wrong flags too."""
    flags, wrong = Flags(overrides=[]), None
    try:
        flags = read_flags(args)
    except ConfigError as error:
        wrong = error
    if flags.show_help or flags.show_config:
        if place.rank:
            return 0
        return _show_help("train") if flags.show_help else _show(_compose(flags, place))
    from gooseslo.engine.adopt import follow, lead
    from gooseslo.engine.interrupt import raised

    if place.rank:
        return follow(place, report)

    def run(leader: Any) -> int:
        if wrong is not None:
            raise wrong
        job = _compose(flags, place)
        return _run(leader.sized(job), args, composed=job, launch=leader.launch, command=place.command)

    with raised():
        return lead(place, run, report)


def _compose(flags: Flags, place: Any) -> Any:
    from gooseslo.engine.place import check_launcher
    from gooseslo.schema.compose import compose_train

    job = compose_train(flags.overrides, config_file=flags.config_file, check_further=_check_against_model)
    if not flags.show_config:
        check_launcher(job.launcher.name, place)
    return job


def _run(job: Any, args: list[str], **options: Any) -> int:
    from gooseslo.engine.preflight import preflight

    preflight(job)  # before the run imports model classes, which takes seconds
    with _importing():
        from gooseslo.engine.run import train as run

    exit_code: int = run(job, overrides=args, cache_dir=cache_folder(), **options)
    return exit_code


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    """Imports of torch and transformers without looking for garbage among what stays: a quarter of their time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _check_against_model(job: Any) -> list[Fault]:
    with _importing():
        from gooseslo.engine.model_config import check_against_model

    return check_against_model(job)


def cache_folder() -> Path:
    """Where prepared data is kept between runs: $XDG_CACHE_HOME/gooseslo, or ~/.cache/gooseslo."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "gooseslo"


def preprocess(flags: Flags, args: list[str]) -> int:
    """Text to token files, PREFIX.bin and PREFIX.idx; or join such files, or show what they hold."""
    from gooseslo.engine.interrupt import raised
    from gooseslo.schema.compose import compose_preprocess

    job = compose_preprocess(flags.overrides, config_file=flags.config_file)
    if flags.show_config:
        return _show(job)
    with raised():
        if job.inspect is not None:
            from gooseslo.data.preprocess.inspect import inspect

            inspect(job.inspect, tokenizer=job.tokenizer, base_dir=Path(), out=sys.stdout)
        elif job.merge is not None:
            from gooseslo.data.preprocess.merge import merge

            merge(job.merge, str(job.output), base_dir=Path(), out=sys.stdout, err=sys.stderr)
        else:
            from gooseslo.data.preprocess.run import Request
            from gooseslo.data.preprocess.run import preprocess as run

            keys = {field.name: getattr(job, field.name) for field in dataclasses.fields(Request)}
            run(Request(**keys), base_dir=Path(), out=sys.stdout, err=sys.stderr)
    return 0


def merge_checkpoint(flags: Flags, args: list[str]) -> int:
    """A run or a step folder to one Hub-style folder."""
    from gooseslo.schema.compose import compose_merge

    job = compose_merge(flags.overrides, config_file=flags.config_file)
    if flags.show_config:
        return _show(job)
    with _importing():
        from gooseslo.engine.checkpoint.folders import passed_over
        from gooseslo.engine.checkpoint.merge import merge_checkpoint as merge

    assert job.input is not None and job.output is not None, "both are checked to be given"
    folder = merge(Path(job.input), Path(job.output), step=job.model.step)
    if warning := passed_over(folder):
        sys.stderr.write(f"warning: {warning}\n")
    sys.stdout.write(f"{folder} -> {job.output}\n")
    return 0


def generate(flags: Flags, args: list[str]) -> int:
    """Text on the terminal from a merged folder."""
    from gooseslo.schema.compose import compose_generate

    job = compose_generate(flags.overrides, config_file=flags.config_file)
    if flags.show_config:
        return _show(job)
    with _importing():
        from gooseslo.engine.generate import generate as write

    exit_code: int = write(job, stdin=sys.stdin, stdout=sys.stdout)
    return exit_code


def doctor(flags: Flags, args: list[str]) -> int:
    """Versions, devices and collectives that work here."""
    from gooseslo.schema.compose import compose_doctor

    job = compose_doctor(flags.overrides, config_file=flags.config_file)
    if flags.show_config:
        return _show(job)
    from rich.console import Console

    from gooseslo.engine.doctor import doctor as examine

    return examine(Console())


@dataclass(frozen=True, kw_only=True)
class Verb:
    run: Callable[[Flags, list[str]], int]
    job: str
    """Name of the job's class in schema.groups."""


VERBS = {
    "train": Verb(run=train, job="TrainJob"),
    "preprocess": Verb(run=preprocess, job="PreprocessJob"),
    "merge-checkpoint": Verb(run=merge_checkpoint, job="MergeJob"),
    "generate": Verb(run=generate, job="GenerateJob"),
    "doctor": Verb(run=doctor, job="DoctorJob"),
}


def command() -> int:
    """The process of the command line: its exit code is settled when the command is done.

    The interpreter takes a moment to close after a run. A signal in that time has nothing left to save or to
    stop, and would only make a run that is done look like one that was killed.
    """
    exit_code = main()
    gc.freeze()  # the interpreter would look through all of torch and transformers twice before it closes
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed at run time, 2 wrong input, 130 interrupted."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(args)
    except GooseError as error:
        report(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`gooseslo train --help | head`); nothing is left to say, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def report(error: GooseError) -> None:
    """Show an error to the user."""
    if os.environ.get("GOOSESLO_DEBUG") == "1":
        traceback.print_exception(error)
    else:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()


def _dispatch(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        verbs = "\n".join(f"  {name:<18} {verb.run.__doc__}" for name, verb in VERBS.items())
        (sys.stdout if args else sys.stderr).write(USAGE.format(verbs=verbs))
        return 0 if args else 2
    if args[0] == "--version":
        sys.stdout.write(f"gooseslo {__version__}\n")
        return 0
    name, *rest = [arg for arg in args if not LOCAL_RANK.fullmatch(arg)]
    if name not in VERBS:
        closest = difflib.get_close_matches(name, VERBS, n=1)
        way_out = f"nearest: {closest[0]}" if closest else f"verbs: {', '.join(VERBS)}"
        raise ConfigError(Fault(key=name, rule="gooseslo has no such verb", way_out=way_out))
    if name == "train":
        from gooseslo.engine.place import find_place

        if (place := find_place(os.environ)) is not None:
            return _train_adopted(place, rest)
    flags = read_flags(rest)
    if flags.show_help:
        return _show_help(name)
    return VERBS[name].run(flags, rest)


def read_flags(args: list[str]) -> Flags:
    """Separate the flags from the overrides; raises ConfigError with every unknown flag."""
    overrides: list[str] = []
    found: dict[str, Any] = {}
    faults = []
    rest = iter(args)
    for arg in rest:
        flag, equals, value = arg.partition("=")
        if flag in ("-h", "--help"):
            found["show_help"] = True
        elif flag in ("-c", "--cfg", "--config-file"):
            value = value if equals else next(rest, "")
            if flag == "--config-file" and value:
                found["config_file"] = Path(value)
            elif flag != "--config-file" and value == "job":
                found["show_config"] = True
            else:
                way_out = "--config-file FILE" if flag == "--config-file" else "--cfg job"
                faults.append(Fault(key=flag, value=value or None, rule="needs its value", way_out=way_out))
        elif arg.startswith("-"):
            closest = difflib.get_close_matches(flag, FLAGS, n=1)
            hint = f"nearest: {closest[0]}" if closest else f"flags: {', '.join(FLAGS)}"
            way_out = f"{hint}; keys take no dashes" if equals else hint
            faults.append(Fault(key=arg, rule="no such flag", way_out=way_out))
        else:
            overrides.append(arg)
    if faults:
        raise ConfigError(faults)
    return Flags(overrides=overrides, **found)


def _show(job: Any) -> int:
    from gooseslo.schema.dump import dump_yaml

    sys.stdout.write(dump_yaml(job))
    return 0


def _show_help(name: str) -> int:
    from gooseslo.schema import groups
    from gooseslo.schema.help import job_help

    verb = VERBS[name]
    usage = f"usage: gooseslo {name} [key=value ...] [--config-file FILE] [--cfg job]"
    sys.stdout.write(f"{usage}\n\n{verb.run.__doc__}\n\n{job_help(getattr(groups, verb.job))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(command())
