"""What a user sets and where: one assignment per command-line argument or per leaf of a configuration file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gooseslo.errors import Fault
from gooseslo.schema.quoting import shortened
from gooseslo.schema.values import Raw, Scalar

ARGUMENT = re.compile(r"(?P<prefix>~|\+{0,2})(?P<key>[^=\s-][^=\s]*)(?:=(?P<value>.*))?", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """`key` gets `raw`; None removes the key. `shown` is the key as typed, `where` the file and line or empty."""

    key: str
    raw: Raw | None
    shown: str
    where: str = ""

    def fault(self, rule: str, way_out: str = "") -> Fault:
        """This assignment is wrong by `rule`."""
        value = None if self.raw is None else shortened(self.raw)
        return Fault(key=self.shown, value=value, rule=f"{rule}{self.where and f' ({self.where})'}", way_out=way_out)


def read_argument(argument: str) -> Assignment | Fault:
    """`key=value`, `+key=value`, `++key=value` or `~key`; keys are closed, so + and ++ only set."""
    match = ARGUMENT.fullmatch(argument)
    if match is None or (match["value"] is None) != (match["prefix"] == "~"):
        if argument.startswith("~"):
            return Fault(key=shortened(argument), rule="removes a key and takes no value", way_out="write ~key")
        way_out = "keys take no dashes" if argument.startswith("-") else ""
        return Fault(key=shortened(argument), rule="is not of the form key=value", way_out=way_out)
    raw = None if match["value"] is None else Scalar.typed(match["value"])
    return Assignment(key=match["key"], raw=raw, shown=match["prefix"] + match["key"])
