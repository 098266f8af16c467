"""Forms in which the raw content of journals is written."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    ContentForm = Callable[[str, int, bytes], bytes]
    """Returns what is written for a journal, an offset, and the content that begins there."""


def plain(_journal: str, _begin: int, content: bytes) -> bytes:
    """Return content as it is."""
    return content


def json_line(journal: str, begin: int, content: bytes) -> bytes:
    """Return a line of JSON with the journal and offset of content, and the content as base64."""
    # Content may end within a character, so it can't be text.
    line = {
        "journal": journal,
        "begin": begin,
        "end": begin + len(content),
        "content": base64.b64encode(content).decode(),
    }
    return msgspec.json.encode(line) + b"\n"
