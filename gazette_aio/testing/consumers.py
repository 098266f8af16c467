"""Harness for tests of consumers: members in this process, and waits for their progress."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import gazette_aio.protocol as pb
from gazette_aio.aio.owner import Owner
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import connect
from gazette_aio.client.reads.head import head_of
from gazette_aio.consumer.api import (
    ShardClient,
    apply_shards,
    connect_shards,
    list_shards,
    stat_shard,
    unassign_shards,
)
from gazette_aio.consumer.keyspace.embedded import EmbeddedStore
from gazette_aio.consumer.service.options import ConsumerOptions
from gazette_aio.consumer.service.service import Service
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol.status_errors import ShardEtcdTransactionFailedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from gazette_aio.client import JournalClient
    from gazette_aio.consumer.allocator.model import Member
    from gazette_aio.consumer.application import Application
    from gazette_aio.consumer.keyspace.store import KeyValueStore

_PREFIX = "/consumer.test"
_AUTH_KEYS = "c2VjcmV0"


@asynccontextmanager
async def consumer_harness(
    application: Application[Any, Any] | None = None,
    *,
    client: JournalClient | None = None,
    store: KeyValueStore | None = None,
) -> AsyncGenerator[ConsumerHarness, None]:
    """Run members of a consumer within this process.

    Args:
        application: Application of members that are started without one of their own.
        client: Client of the brokers; None starts an embedded broker.
        store: Key-value store of the group, such as an EtcdStore; None for a store in memory.

    Cancellation: safe — the members are stopped.

    Example:
        async with consumer_harness(WordCount()) as harness:
            await create_journals(harness.client, journal_spec("words/in"))
            await harness.start_member()
            await harness.create_shards(shard)
            await harness.client.append("words/in", content)
            await harness.wait_for_shards()
    """
    async with AsyncExitStack() as stack:
        if client is None:
            broker = await stack.enter_async_context(EmbeddedBroker())
            client = await stack.enter_async_context(connect(broker.endpoint))
        if store is None:
            store = await stack.enter_async_context(EmbeddedStore())
        yield await stack.enter_async_context(ConsumerHarness(application, client, store))


class ConsumerHarness(Owner):
    """Members of a consumer that share a group and brokers. Made by `consumer_harness()`."""

    def __init__(
        self,
        application: Application[Any, Any] | None,
        client: JournalClient,
        store: KeyValueStore,
    ) -> None:
        self.application = application
        """Application of members that have none of their own."""
        self.client = client
        """Client of the brokers."""
        self.store = store
        """Store of the group."""
        self.members: list[Service] = []
        """Members that run."""
        self._numbers = itertools.count(1)
        self._clients: dict[str, ShardClient] = {}

    def __repr__(self) -> str:
        return f"<ConsumerHarness of {len(self.members)} members>"

    async def start_member(
        self,
        application: Application[Any, Any] | None = None,
        *,
        zone: str = "local",
        id: str = "",  # noqa: A002 - As the option of members.
        limit: int = 100,
    ) -> Service:
        """Start a member, and return it after it has joined the group.

        Args:
            application: Application of the member's shards; None for the harness's application.
            zone: Zone of the member.
            id: Name of the member within the zone; empty for `member-1` and so on.
            limit: Most shards to assign to the member.

        Raises:
            ConfigurationError: There's no application.

        Cancellation: safe — the member is stopped.
        """
        if (application := application or self.application) is None:
            raise pb.ConfigurationError("the member has no application")
        options = ConsumerOptions(
            prefix=_PREFIX,
            zone=zone,
            id=id or f"member-{next(self._numbers)}",
            host="127.0.0.1",
            bind="127.0.0.1",
            limit=limit,
            lease_ttl=60,
            watch_delay=0.0,
            stop_timeout=1.0,
            auth_keys=_AUTH_KEYS,
        )
        member = Service(application, self.store, self.client, options)
        await member.start()
        self.members.append(member)
        return member

    async def stop_member(self, member: Service) -> bool:
        """Stop a member after it has handed over its shards; return whether all were handed over.

        Raises:
            Exception: The error with which the member failed. The member is stopped.

        Cancellation: safe — call again.
        """
        if not member.session.is_exiting:
            member.exit_gracefully()
        try:
            handed_over = await member.wait()
        except Exception:
            await self.crash_member(member)
            raise
        await self.crash_member(member)
        return handed_over

    async def crash_member(self, member: Service) -> None:
        """Stop a member at once. The group assigns its shards again. Idempotent.

        The method returns after the other members have seen the end of this member.

        Cancellation: safe — call again.
        """
        await self._stop(member)
        if member not in self.members:
            return
        local = member.session.group.local_member
        for other in tuple(self.members):
            if local is not None and other is not member:
                await _until(other, partial(_is_gone, local, other))
        self._forget(member)

    async def create_shards(self, *specs: pc.ShardSpec) -> None:
        """Create shards, and wait until each has a primary.

        Raises:
            ShardStatusError: A shard exists.
            ValidationError: A spec is invalid.
            UsageError: No member is running.

        Cancellation: aborts — the shards may have been created.
        """
        changes = [pc.ApplyRequest.Change(upsert=spec) for spec in specs]
        await apply_shards(self.shards, changes)
        for spec in specs:
            await self.wait_for_primary(spec.id)

    async def wait_for_primary(self, shard: str) -> pb.Route:
        """Wait until the primary of a shard is ready, and return the shard's route.

        Raises:
            UsageError: The primary has failed, or no member is running.

        Cancellation: safe.
        """
        while True:
            member = self._any_member()
            if await _until(member, partial(_has_primary, member, shard)):
                return member.resolver.route(shard)

    async def wait_for_shards(self, selector: str = "") -> None:
        """Wait until shards have consumed the present content of their sources.

        The transactions of this content are then fully acknowledged.

        Args:
            selector: Selector of the shards; empty for all.

        Raises:
            ShardStatusError: A shard ended meanwhile.
            UsageError: A primary has failed, or no member is running.

        Cancellation: safe.
        """
        listed = await list_shards(self.shards, selector)
        heads: dict[str, int] = {}
        for shard in listed.shards:
            for source in shard.spec.sources:
                if source.journal not in heads:
                    name = source.journal.partition(";")[0]
                    heads[source.journal] = await head_of(self.client, name)
        for shard in listed.shards:
            offsets = {source.journal: heads[source.journal] for source in shard.spec.sources}
            await self.wait_for_primary(shard.spec.id)
            await stat_shard(self.shards, pc.StatRequest(shard=shard.spec.id, read_through=offsets))

    async def unassign(self, *shards: str) -> None:
        """Remove the primaries of shards, so that the shards are assigned again.

        Cancellation: aborts — assignments may have been removed.
        """
        while True:
            try:
                await unassign_shards(self.shards, shards)
            except ShardEtcdTransactionFailedError:
                continue  # A primary wrote its status meanwhile.
            return

    @property
    def shards(self) -> ShardClient:
        """Client of the first running member.

        Raises:
            UsageError: No member is running.
        """
        endpoint = self._any_member().endpoint
        if (client := self._clients.get(endpoint)) is None:
            client = connect_shards(endpoint, auth=pb.KeyedAuth(_AUTH_KEYS))
            self._clients[endpoint] = client
        return client

    async def aclose(self) -> None:
        """Stop all members. Idempotent.

        Cancellation: safe — call again.
        """
        for member in tuple(self.members):
            await self._stop(member)
            self._forget(member)

    async def _stop(self, member: Service) -> None:
        if (client := self._clients.get(member.endpoint)) is not None:
            await client.aclose()
            self._clients.pop(member.endpoint, None)
        await member.aclose()

    def _forget(self, member: Service) -> None:
        if member in self.members:
            self.members.remove(member)

    def _any_member(self) -> Service:
        for member in self.members:
            if member.is_ready:
                return member
        raise pb.UsageError("no member is running")


async def _until(member: Service, condition: Callable[[], bool]) -> bool:
    """Wait until a condition on a member's view holds; return False if the member stops before.

    Cancellation: safe.
    """
    changed = asyncio.Event()

    def wake(_: object) -> None:
        changed.set()

    observers = member.session.key_space.observers
    observers.append(wake)
    stopping = asyncio.ensure_future(member.stopping.wait())
    stopping.add_done_callback(wake)
    try:
        while not condition():
            if member.stopping.is_set():
                return False
            await changed.wait()
            changed.clear()
        return True
    finally:
        observers.remove(wake)
        stopping.cancel()


def _has_primary(member: Service, shard: str) -> bool:
    """Return whether a member sees a ready primary of a shard.

    Raises:
        UsageError: The primary has failed.
    """
    for assignment in member.session.group.assignments(shard):
        status = assignment.status
        if assignment.slot != 0:
            continue
        if status.code == pc.ReplicaStatus.FAILED:
            raise pb.UsageError(f"shard {shard} failed: {'; '.join(status.errors)}")
        if status.code == pc.ReplicaStatus.PRIMARY:
            return True
    return False


def _is_gone(member: Member, other: Service) -> bool:
    """Return whether another member sees no member of this identity, or a successor."""
    shown = other.session.group.members.get(member.id)
    return shown is None or shown.raw.create_revision != member.raw.create_revision
