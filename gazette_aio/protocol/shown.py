"""Texts for people: names of enum values, and text of others that a terminal can show.

Names, labels and errors come from anybody. A terminal would execute their control characters, and
bidirectional controls reorder what stands beside them: a text could forge a line, or hide its end.
"""

from __future__ import annotations

import re
from typing import Any, Final

_UNSAFE: Final = re.compile(
    # Control characters of C0 and C1, and separators of lines.
    "[\x00-\x1f\x7f-\x9f\u2028\u2029"
    # Characters that reorder text, or that are invisible.
    "\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f"
    # Halves of surrogate pairs, which can't be written.
    "\ud800-\udfff]"
)


def shown_name(enum: Any, number: int) -> str:
    """Return the name of an enum value, or a text such as `UNKNOWN(7)` for an unknown value.

    Args:
        enum: A generated enum.
        number: The value.
    """
    return str(enum.Name(number)) if number in enum.values() else f"UNKNOWN({number})"


def shown_text(text: str, *, keep: str = "") -> str:
    r"""Return text with escapes such as `\x1b` for all that terminals execute, reorder or hide.

    The escapes are also those of double-quoted strings of YAML.

    Args:
        text: Text of any origin.
        keep: Characters to keep, such as the ends of lines of a table.
    """
    return _UNSAFE.sub(lambda found: found[0] if found[0] in keep else _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def shown_json(text: str) -> str:
    """Return an equal JSON document, with the same characters escaped as by `shown_text()`.

    Args:
        text: A JSON document. Its ends of lines are kept.
    """
    return _UNSAFE.sub(lambda found: found[0] if found[0] == "\n" else _json_escape(found[0]), text)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
