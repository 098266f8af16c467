"""Options of reading messages, in any form."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, TypedDict

from gazette_aio.message.uuid import clock_from_datetime
from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from gazette_aio.client import JournalClient

DEFAULT_BUFFER_BYTES: Final = 4 << 20
"""Default of `buffer_bytes`."""

Start = Mapping[str, int] | datetime | None


class ReadOptions(TypedDict, total=False):
    """Options of `ReadCommittedIter` and `ReadUncommittedIter`. None of them is required."""

    client: JournalClient | None
    """Client to read journals by name or selector."""
    block: bool
    """Wait for new messages, and for journals which join.

    By default, iteration ends once all journals were read up to their write heads; those of a
    selector as it was listed at first.
    """
    start: Start
    """Where journals start which the checkpoint has no offset of; by default, at their begin.

    Either offsets by journal; or an aware datetime, which leaves out older fragments, and messages
    with older clocks.
    """
    on_error: Literal["raise", "skip"]
    """Whether a frame which can't be decoded raises a FramingError, after which iteration may go
    on; or is skipped, and counted as `skipped`. By default, it raises."""
    skip_acks: bool
    """Leave out acknowledgements. By default, they're delivered: they end transactions."""
    strict_uuid: bool
    """Refuse UUIDs which aren't of version 1. By default, they're accepted."""
    max_frame_bytes: int
    """Limit of the length of one message; 1 GiB by default."""
    buffer_bytes: int
    """Limit of content which is read ahead, over all of several journals; 4 MiB by default."""
    direct: bool | None
    """Fetch files of fragments from their stores, rather than through a broker (the default)."""


def check_options(options: ReadOptions) -> None:
    """Check names of options, and values which nothing else checks.

    Raises:
        TypeError: There's no such option.
        ConfigurationError: A value is none of those which there are.
    """
    for name in options:
        if name not in ReadOptions.__annotations__:
            raise TypeError(f"there's no option {name!r} of reading messages")
    on_error = options.get("on_error", "raise")
    if on_error not in {"raise", "skip"}:
        raise ConfigurationError(f"on_error is {on_error!r} (expected 'raise' or 'skip')")


def start_clock(options: ReadOptions) -> int:
    """Return the clock before which messages are left out, or 0."""
    start = options.get("start")
    return clock_from_datetime(start) if isinstance(start, datetime) else 0
