"""Files of read offsets: where reads of journals begin, and where they ended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, cast

from gazette_aio.cli.shell.failures import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

_WRITE_HEAD: Final = -1
_LARGEST: Final = (1 << 63) - 1
_OF_CHECKPOINTS: Final = {"version", "offsets", "producers"}


def parse_offsets(text: str, *, source: str) -> dict[str, int]:
    """Return the offsets by journal of a file of JSON.

    Args:
        text: Content of the file.
        source: Name of the file in errors.

    Raises:
        InputError: The file isn't an object of offsets.
    """
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: {error}") from None
    if not isinstance(parsed, dict):
        raise InputError(f"{source}: expected an object of offsets by journal")
    offsets = cast("dict[str, object]", parsed)
    if offsets.keys() >= _OF_CHECKPOINTS:
        raise InputError(f"{source}: these are offsets of --committed")
    for journal, offset in offsets.items():
        if type(offset) is not int or not _WRITE_HEAD <= offset <= _LARGEST:
            raise InputError(f"{source}: {journal!r} isn't an offset ({offset!r})")
    return cast("dict[str, int]", offsets)


def is_checkpoint(text: str) -> bool:
    """Return whether a text is a checkpoint of committed messages, rather than offsets."""
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(parsed, dict) and parsed.keys() >= _OF_CHECKPOINTS


def format_offsets(offsets: Mapping[str, int]) -> str:
    """Return offsets as a line of JSON, in the order of journals."""
    return json.dumps(offsets, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"
