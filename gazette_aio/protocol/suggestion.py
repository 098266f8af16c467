"""The known name that is closest to an unknown one."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_COMPARED: Final = 100
"""Characters: the comparison takes their square."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the end of a text about an unknown name, which asks for a similar known one.

    Case, `_` and `-` make no difference. The text is empty if no known name is similar.
    """
    names = {_bare(each): each for each in known}
    close = difflib.get_close_matches(_bare(name[:_MOST_COMPARED]), names, n=1)
    return f": did you mean {names[close[0]]!r}?" if close else ""


def _bare(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
