"""Progress of a shard: what it has read and published by fully acknowledged transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Progress(NamedTuple):
    """Progress as of the last transaction that is fully acknowledged."""

    read_through: Mapping[str, int]
    """Offset through which each source was read, by journal."""
    publish_at: Mapping[str, int]
    """Offset, of each journal that acknowledgements were appended to, that covers every message
    and acknowledgement that reads within `read_through` caused."""
