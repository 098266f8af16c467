"""Options of reading messages, in every form of iteration."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, cast

from gazette_aio.message.uuid import clock_from_datetime
from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.protocol.suggestion import suggestion

if TYPE_CHECKING:
    from gazette_aio.client import JournalClient

DEFAULT_BUFFER_BYTES: Final = 4 << 20
"""Default of `buffer_bytes`."""

Start = Mapping[str, int] | datetime | None


class ReadOptions(TypedDict, total=False):
    """Options of `ReadCommittedIter` and `ReadUncommittedIter`. All are optional."""

    client: JournalClient | None
    """Client to read journals by name or selector."""
    block: bool
    """Wait for new messages, and for journals that join.

    By default, iteration ends when all journals were read up to their write heads: for a selector,
    the journals of its first listing.
    """
    start: Start
    """Where to start journals without an offset in the checkpoint; by default, at their beginning.

    Either offsets by journal, or an aware datetime, which leaves out older fragments, and messages
    with older clocks.
    """
    on_error: Literal["raise", "skip"]
    """Whether a frame that can't be decoded raises a FramingError, the default, after which
    iteration may continue; or is skipped, and counted by `skipped`."""
    skip_acks: bool
    """Leave out acknowledgements, which end transactions. By default, they're delivered."""
    strict_uuid: bool
    """Refuse UUIDs that aren't of version 1. By default, they're accepted."""
    max_frame_bytes: int
    """Limit of the length of one message; 1 GiB by default."""
    buffer_bytes: int
    """Limit of content that is read ahead, over all journals; 4 MiB by default."""
    direct: bool | None
    """Fetch fragment files from their stores, rather than through a broker (the default)."""


def check_options(options: ReadOptions) -> None:
    """Check the names of options, and values without a later check.

    Raises:
        TypeError: An option is unknown.
        ConfigurationError: A value isn't allowed.
    """
    for name in options:
        if name not in ReadOptions.__annotations__:
            hint = suggestion(name, ReadOptions.__annotations__)
            raise TypeError(f"unknown option {name!r}{hint}")
    on_error = options.get("on_error", "raise")
    if on_error not in {"raise", "skip"}:
        raise ConfigurationError(f"on_error is {on_error!r} (expected 'raise' or 'skip')")
    start: Any = options.get("start")
    if not (start is None or isinstance(start, datetime) or _are_offsets(start)):
        raise ConfigurationError(
            f"start is {start!r} (expected offsets by journal, such as {{'a/journal': 0}}, or an "
            "aware datetime)"
        )


def _are_offsets(start: Any) -> bool:
    if not isinstance(start, Mapping):
        return False
    offsets = cast("Mapping[str, object]", start).values()
    return all(hasattr(offset, "__index__") for offset in offsets)


def start_clock(options: ReadOptions) -> int:
    """Return the clock before which messages are left out, or 0."""
    start = options.get("start")
    return clock_from_datetime(start) if isinstance(start, datetime) else 0
