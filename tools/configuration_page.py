"""Writes docs/configuration.md from the schemas: every key of every verb, its type, default and meaning."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gooseslo.cli import VERBS
from gooseslo.schema import groups
from gooseslo.schema.help import KeyHelp, group_descriptions, key_help

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
HEAD = """\
<!-- Written by `python tools/configuration_page.py` from gooseslo/schema/groups.py and configs/; do not edit. -->

# Configuration

A command line is a verb and assignments. `group=option` chooses a file of `configs/`, `key=value` sets one key.
The last word counts. The order is: the defaults, then the recipe, then `--config-file`, then the command line.

```
gooseslo train model=gpt2 optimizer=sgd train.steps=500 --cfg job       # shows the configuration and does not train
```

- A key that does not exist fails at once and names the nearest one. A wrong type or a value out of range does too.
- Text is taken as typed: `prompt=Hello, world` needs quotes for the shell only.
- `null` is no value; for the text null, write `"'null'"`.
- `model.config.FIELD` sets any field of the architecture's Hugging Face configuration.
- `gooseslo VERB --help` shows what is on this page.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, verb in VERBS.items():
        job = getattr(groups, verb.job)
        parts.append(f"## gooseslo {name}\n\n{verb.run.__doc__}\n")
        if job is groups.TrainJob:
            parts.append("### Groups\n\n" + _table(("group", "options", "what it is"), group_descriptions()))
        for section, keys in _sections(key_help(job)).items():
            parts.append((f"### {section}\n\n" if section else "") + _key_table(keys))
        if not key_help(job):
            parts.append("It has no keys.\n")
    return "\n".join(parts)


def _sections(keys: list[KeyHelp]) -> dict[str, list[KeyHelp]]:
    """The keys by their first part, those without one first."""
    sections: dict[str, list[KeyHelp]] = {"": []}
    for entry in keys:
        section, dot, _ = entry.key.partition(".")
        sections.setdefault(section if dot else "", []).append(entry)
    return {section: entries for section, entries in sections.items() if entries}


def _key_table(keys: list[KeyHelp]) -> str:
    rows = [(f"`{entry.key}`", entry.kind, f"`{entry.default}`" if entry.default else "", entry.text) for entry in keys]
    return _table(("key", "type", "default", "meaning"), rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(_escaped(cell) for cell in line) + " |\n" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("<", "\\<")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where the page is another")
    if parser.parse_args().check:
        same = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page()
        if not same:
            sys.stderr.write(f"{PAGE}: is not what the schemas say; run python tools/configuration_page.py\n")
        return 0 if same else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
