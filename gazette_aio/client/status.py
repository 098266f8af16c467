"""What a client is about, as a snapshot: plain values, to be shown, logged or pickled."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gazette_aio.client.appends.service import AppendStatus
    from gazette_aio.client.client import JournalClient
    from gazette_aio.client.rpc.channel_pool import MemberStatus


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StreamStatus:
    """A stream of responses which is open, or a fragment file which is being read."""

    journal: str
    """The journal read, or empty for a listing or a watch."""
    endpoint: str
    """The broker which answers, or which referred to the file."""
    waiting_bytes: int
    """Bytes which were received and not yet taken."""
    offset: int | None = None
    """Offset of the next byte to be returned, if a Reader reads the stream and knows it."""
    write_head: int | None = None
    """Write head of the journal, as the broker told it last."""
    is_direct: bool = False
    """Whether the file of a fragment is read, rather than content which the broker sends."""

    @property
    def lag(self) -> int | None:
        """Bytes from the offset to the write head, or None while either is unknown."""
        if self.offset is None or self.write_head is None:
            return None
        # The head is told with metadata only, and content may have gone beyond it since.
        return max(self.write_head - self.offset, 0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchStatus:
    """A list of journals which is kept up to date."""

    selector: str
    state: str
    """One of `connecting`, `watching`, `polling`, `retrying`, `failed`."""
    journals: int | None
    """Journals of the newest listing, or None if there is none yet."""
    revision: int | None
    """Its revision."""
    last_error: str | None
    """Text of the last error, or None if all went well since."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatus:
    """What a client is about."""

    endpoint: str
    connection: str
    """One of `idle`, `connecting`, `ready`, `transient_failure`, `closed`."""
    members: tuple[MemberStatus, ...]
    """Connections to brokers which serve journals."""
    streams: tuple[StreamStatus, ...]
    """Reads, listings and watches which are under way."""
    watches: tuple[WatchStatus, ...]
    """Lists of journals which are kept up to date."""
    appends: AppendStatus


def client_status(
    client: JournalClient, connection: str, members: tuple[MemberStatus, ...]
) -> ClientStatus:
    """Return the status of a client.

    Args:
        client: The client.
        connection: State of its connection to the default address.
        members: Its connections to others.
    """
    readers = [reader for reader in client.readers if reader.is_live]
    owned = {id(reader.stream) for reader in readers}
    return ClientStatus(
        endpoint=client.endpoint,
        connection=connection,
        members=members,
        streams=(
            *(reader.status() for reader in readers),
            *(
                StreamStatus(
                    journal=stream.journal,
                    endpoint=stream.endpoint,
                    waiting_bytes=stream.waiting_bytes,
                )
                for stream in client.rpc.streams
                if id(stream) not in owned
            ),
        ),
        watches=tuple(watch.status() for watch in client.watches if watch.is_live),
        appends=client.appends.status(),
    )
