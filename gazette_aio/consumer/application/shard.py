"""Shard of this member, and its progress, as applications and stores see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from gazette_aio.client import AsyncJournalClient, JournalClient
    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.consumer.allocator.model import Assignment
    from gazette_aio.message.publishing.publisher import Publisher
    from gazette_aio.protocol.consumer import GetHintsResponse, ShardSpec


class Progress(NamedTuple):
    """Progress as of the last transaction that is fully acknowledged."""

    read_through: Mapping[str, int]
    """Offset through which each source was read, by journal."""
    publish_at: Mapping[str, int]
    """Offset, of each journal that acknowledgements were appended to, that covers every message
    and acknowledgement that reads within `read_through` caused."""


class Shard(Protocol):
    """A shard that is assigned to this member."""

    @property
    def id(self) -> str:
        """ID of the shard."""
        ...

    @property
    def fqn(self) -> str:
        """Key of the shard's spec in Etcd: unique among deployments, and so the key of fences."""
        ...

    @property
    def spec(self) -> ShardSpec:
        """Current spec. It's replaced and never modified when the spec changes."""
        ...

    @property
    def assignment(self) -> Assignment:
        """Current assignment of this replica."""
        ...

    @property
    def client(self) -> JournalClient:
        """Client of brokers."""
        ...

    @property
    def appends(self) -> AsyncJournalClient:
        """Appends of this shard: a transaction commits only after those begun within it."""
        ...

    @property
    def publisher(self) -> Publisher[Any]:
        """Publisher of the present transaction, and of later ones until a transaction is repeated.

        Its `view()` publishes messages of other adapters.

        Raises:
            RuntimeError: This replica isn't the primary.
        """
        ...

    @property
    def recovered_hints(self) -> GetHintsResponse | None:
        """Hints that the recovery used; None without a recovery log."""
        ...

    def progress(self) -> Progress:
        """Return the progress of fully acknowledged transactions. Later ones don't modify it."""
        ...

    @property
    def primary_loop(self) -> OpFuture[None]:
        """Ends when this replica ceases to be the primary, or by the error it failed with."""
        ...

    @property
    def cancelled(self) -> asyncio.Event:
        """Set when the assignment is lost; not when the shard fails."""
        ...
