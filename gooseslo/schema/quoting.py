"""Text that people type is taken as typed; only one pair of quotes round all of it is dropped, as Hydra would."""

from __future__ import annotations

import re


def unquote(text: str) -> tuple[str, bool]:
    """The text without the quotes that enclose all of it, and whether there were any.

    `'out/step=100.bin'` is one quoted string; `It's`, `'a' and 'b'` and `'` are not, and stay as they are.
    Inside, backslashes count only before a quote of the same kind, as in Hydra's grammar.
    """
    quote = text[:1]
    if quote not in ("'", '"') or len(text) < 2:
        return text, False
    body = text[1:]
    pieces, start = [], 0
    for match in re.finditer(rf"(\\*){quote}", body):
        backslashes = len(match[1])
        pieces.append(body[start : match.start()] + "\\" * (backslashes // 2))
        start = match.end()
        if backslashes % 2 == 0:  # the closing quote
            return ("".join(pieces), True) if start == len(body) else (text, False)
        pieces.append(quote)
    return text, False


def quote(text: str) -> str:
    """`text` in single quotes, such that `unquote` gives it back."""
    escaped = re.sub(r"(\\*)('|\Z)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text)
    return f"'{escaped}'"


def bare_keys(text: str) -> str:
    """A list or mapping without the quotes round its keys, which Hydra's grammar lacks: {"*.bias": 1} -> {*.bias: 1}.

    Quoted values stay; so do keys with a character that Hydra takes in no key.
    """

    def bare(match: re.Match[str]) -> str:
        if match["colon"] is None or not re.fullmatch(r"[\w./+*?$%@|()\[\]{}:=, -]+", match["body"]):
            return match[0]
        return re.sub(r"([()\[\]{}:=, ])", r"\\\1", match["body"]) + match["colon"]

    return re.sub(r"(?P<quote>['\"])(?P<body>(?:\\.|(?!(?P=quote)).)*)(?P=quote)(?P<colon>\s*:)?", bare, text)


def as_argument(key: str, text: str) -> str:
    """`key=text` such that a text key given this argument gets exactly `text` (a shell needs shlex.quote besides)."""
    ambiguous = text == "null" or text[:1] in ("[", "{") or unquote(text)[1]
    return f"{key}={quote(text) if ambiguous else text}"


def as_typed(value: object) -> str:
    """A value as the command line has it: null, true, [a, b], {path: a, weight: 0.5}."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_typed, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {as_typed(item)}' for key, item in value.items())}}}"
    return str(value)


def shortened(value: object, limit: int = 60) -> str:
    """The value on one line of at most `limit` characters, for messages, as it would be typed."""
    text = as_typed(value)
    if not text.isprintable():
        text = repr(text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
