"""What a page of documentation tells its reader to type: the commands and the Python of its code blocks."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """One command: its words, and the variables set before them."""

    words: tuple[str, ...]
    variables: tuple[str, ...] = ()

    def __str__(self):
        return " ".join(self.words)


@dataclass(frozen=True)
class Script:
    """One block of Python."""

    source: str


def steps(page: str) -> list[Command | Script]:
    """What the page has its reader do, in its order; blocks of another kind (```text) are only looked at."""
    found: list[Command | Script] = []
    for language, body in _BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        if language == "python":
            found.append(Script(body))
        elif language == "":
            found += [_command(part) for line in body.splitlines() for part in line.split("&&") if part.strip()]
    return found


def commands(page: str, program: str) -> list[Command]:
    """The page's commands of one program."""
    return [step for step in steps(page) if isinstance(step, Command) and step.words[:1] == (program,)]


def _command(text: str) -> Command:
    words = shlex.split(text, comments=True)
    variables = [word for word in words if re.match(r"[A-Z_]+=", word)]
    return Command(tuple(word for word in words if word not in variables), tuple(variables))
