"""Characters on which libraries with unequal versions of Unicode may not agree: letters and digits that came late."""

from __future__ import annotations

import functools
import re
import unicodedata

_NEWER = (
    "\\u0558\\u058b\\u058c\\u088f\\u0c5c\\u0cdc\\u1c89\\u1c8a\\u208f\\u209d-\\u209f\\ua7cb-\\ua7cf\\ua7d2\\ua7d4"
    "\\ua7da-\\ua7dd\\ua7e2\\ua7f1\\uab6c\\uab6d"
)
"""Those of 16 bits that came with Unicode 15 to 18, which a newer Python knows: a set of `re`."""
_KNOWN_ABOVE = (
    (0x1D400, 0x1D6A5),  # letters for mathematics
    (0x1F300, 0x1FAFF),  # pictures, and nothing but pictures to come
    (0x20000, 0x2B738),  # Chinese characters
    (0x2B740, 0x2B81D),
    (0x2B820, 0x2CEA1),
    (0x2CEB0, 0x2EBE0),
)
"""Above 16 bits, in Unicode 14 or never letters; what else there is is rare enough to be taken for new."""


def may_be_new(text: str) -> bool:
    """Whether a character of the text might be a letter, digit or space to one library and to another none.

    What Unicode 14 assigned is not: it keeps its category. A lone surrogate is taken for new.
    """
    if text.isascii():
        return False
    new, above, new_above = _patterns()
    return new.search(text) is not None or (above.search(text) is not None and new_above.search(text) is not None)


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    unassigned = [f"\\u{code:04x}" for code in range(0x10000) if unicodedata.category(chr(code)) in ("Cn", "Cs")]
    known = "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in _KNOWN_ABOVE)
    # Apart, since `re` is slow where a set has ranges above 16 bits.
    above = "\\U00010000-\\U0010ffff"
    return (
        re.compile(f"[{''.join(unassigned)}{_NEWER}]"),
        re.compile(f"[{above}]"),
        re.compile(f"[^\\0-\\uffff{known}]"),
    )
