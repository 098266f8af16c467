"""Snapshots of the state of a client: plain values to show, log or pickle."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

StatusT_co = TypeVar("StatusT_co", covariant=True)


class Reporting(Protocol[StatusT_co]):
    """A part of a client that reports its status while it's live."""

    @property
    def is_live(self) -> bool:
        """Whether there is anything to report."""
        ...

    def status(self) -> StatusT_co:
        """Return the status at this moment."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class MemberStatus:
    """The connection to a member of a route."""

    endpoint: str
    connection: str
    """One of `idle`, `connecting`, `ready`, `transient_failure`."""
    rpcs: int
    """RPCs in progress."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StreamStatus:
    """An open stream of responses, or a fragment file that is being read."""

    journal: str
    """The journal read, or empty for a listing or a watch."""
    endpoint: str
    """The broker that answers, or that referred to the file."""
    waiting_bytes: int
    """Bytes received but not yet taken."""
    offset: int | None = None
    """Offset of the next byte to be returned, if a Reader reads the stream and knows it."""
    write_head: int | None = None
    """Write head of the journal, as the broker sent it last."""
    is_direct: bool = False
    """Whether the bytes come from the file of a fragment, rather than from the broker."""

    @property
    def lag(self) -> int | None:
        """Bytes from the offset to the write head, or None while either is unknown."""
        if self.offset is None or self.write_head is None:
            return None
        # Only metadata has the head, and content may have gone beyond it since.
        return max(self.write_head - self.offset, 0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchStatus:
    """A list of journals that is kept up to date."""

    selector: str
    state: str
    """One of `connecting`, `watching`, `polling`, `retrying`, `failed`."""
    journals: int | None
    """Journals of the newest listing, or None before the first one."""
    revision: int | None
    """Revision of the newest listing."""
    last_error: str | None
    """Text of the latest error, or None if there was none since the last success."""


@dataclasses.dataclass(frozen=True, slots=True)
class AppendStatus:
    """Pending appends of an AppendService, or of several."""

    journals: int
    """Journals with pending appends."""
    batches: int
    """Batches of these journals. Each takes one RPC."""
    appends: int
    """Appends in these batches."""
    pending_bytes: int
    """Content of these batches, in bytes."""
    failed_journals: int
    """Journals whose appends fail until `clear_error()`."""


def total_appends(parts: Iterable[AppendStatus]) -> AppendStatus:
    """Return the sums of the numbers of several services."""
    fields = [dataclasses.astuple(part) for part in parts]
    return AppendStatus(*map(sum, zip((0, 0, 0, 0, 0), *fields, strict=True)))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatus:
    """Connections, streams, watches and pending appends of a client."""

    endpoint: str
    connection: str
    """One of `idle`, `connecting`, `ready`, `transient_failure`, `closed`."""
    members: tuple[MemberStatus, ...]
    """Connections to brokers that serve journals."""
    streams: tuple[StreamStatus, ...]
    """Open reads, listings and watches."""
    watches: tuple[WatchStatus, ...]
    """Lists of journals that are kept up to date."""
    appends: AppendStatus
    """Pending appends of all services of the client."""
