"""A job as YAML that `--config-file` reads back to the same values."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import yaml

PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(?:[./][A-Za-z0-9_-]+)*")
AMBIGUOUS = {"true", "false", "yes", "no", "on", "off", "y", "n", "null", "inf", "nan"}


def dump_yaml(job: Any) -> str:
    """The whole job, nested by group; text that YAML or Hydra could take for anything else is quoted."""
    text: str = yaml.dump(
        dataclasses.asdict(job),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=float("inf"),
    )
    return text


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = PLAIN.fullmatch(text) and text.lower() not in AMBIGUOUS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


def _represent_list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.SequenceNode:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(list, _represent_list)
