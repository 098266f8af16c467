"""Resolver of shards: which member serves a shard, and, if it's this one, its replica."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import gazette_aio.protocol as pb
from gazette_aio.consumer.application.hooks import awaited
from gazette_aio.consumer.shards.errors import ResolverError, ResolverStoppedError
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol.status_errors import shard_status_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from gazette_aio.consumer.allocator.model import Item, MemberID
    from gazette_aio.consumer.service.service import Service
    from gazette_aio.consumer.shards.replica import Replica

_MISSING_MEMBER: Final = pb.ProcessSpec.ID(zone="local ConsumerSpec", suffix="missing from Etcd")
"""Identity of this member once its key is gone: a member that stops still proxies."""


@dataclass(slots=True)
class Resolution:
    """Result of resolving a shard: its primary and, if that's this member, its store.

    The end of the block of `Resolver.resolve()` releases it.
    """

    status: pc.Status.ValueType
    """OK, or why the shard isn't served."""
    header: pb.Header
    """This group's revision, and the shard's route. `process_id` is that of the primary, or, if
    the status isn't OK, that of this member."""
    spec: pc.ShardSpec | None = None
    """Spec of the shard, if it exists and the claims match it."""
    shard: Replica | None = None
    """The replica, if it's served here."""
    store: Any = None
    """The replica's store, which `new_store()` returned, if it's served here; else None. It isn't
    destroyed before the end of the block, unless that takes longer after the end of the assignment
    than `ConsumerOptions.release_timeout`."""

    @property
    def is_local(self) -> bool:
        """Whether the shard is served here."""
        return self.shard is not None

    @property
    def endpoint(self) -> str:
        """Endpoint of the shard's primary; empty if there's none, or if that member is gone."""
        route = self.header.route
        return route.endpoints[route.primary] if route.primary >= 0 else ""

    def raise_for_status(self) -> None:
        """Do nothing if the status is OK.

        Raises:
            ShardStatusError: The status isn't OK.
        """
        if self.status != pc.Status.OK:
            shard = self.spec.id if self.spec is not None else ""
            raise shard_status_error(self.status, shard=shard, header=self.header)


class Resolver:
    """Resolves shards to the members that serve them. It follows the key space of the member.

    Args:
        service: The member, whose key space is made.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._group = service.group
        self._local_shards = service.local_shards

    def __repr__(self) -> str:
        return f"<Resolver of {self._local_shards!r}>"

    def shards_with_source(self, journal: str) -> list[pc.ShardSpec]:
        """Return the shards of the group that read a journal, by ID.

        Args:
            journal: Name of the journal, with the suffix that the shards give it, if any.
        """
        return self._group.shards_with_source(journal)

    @asynccontextmanager
    async def resolve(
        self,
        shard: str,
        *,
        claims: pb.Claims | None = None,
        may_proxy: bool = True,
        proxy_header: pb.Header | None = None,
        read_through: Mapping[str, int] | None = None,
    ) -> AsyncGenerator[Resolution]:
        """Resolve a shard, and wait until its replica can serve, if that's here.

        Use `async with resolver.resolve(...) as resolution:`, in whose block the store stays. A
        shard fails with SHARD_STOPPED if it fails or ends while it's waited for. A failed shard
        whose store is ready still resolves, unless offsets are waited for.

        Args:
            shard: ID of the shard.
            claims: Claims of the caller, which don't see other shards; None for all shards.
            may_proxy: Whether a shard of another member is OK, rather than NOT_SHARD_PRIMARY.
            proxy_header: Header of the member that proxied the request here, if one did. Its
                revision is waited for.
            read_through: Offsets by journal that the shard must have read, its transactions being
                fully acknowledged. Journals that it isn't reading are passed over, such as sources
                that were added since it was assigned.

        Raises:
            ResolverStoppedError: The shard is of this member, which is stopping.
            ResolverError: `proxy_header` is of another group or for another member, or the
                application's `read_through()` failed.

        Cancellation: safe.
        """
        if proxy_header is not None:
            await self._accept(proxy_header)
        resolution, primary = self._route(shard, claims, may_proxy=may_proxy)
        if resolution.status != pc.Status.OK:
            resolution.header.process_id.CopyFrom(self.process_id)
        if resolution.status != pc.Status.OK or primary != self._group.local:
            yield resolution
            return
        replica = await self._local_shards.replica(shard)
        if replica is None:
            if self._local_shards.has_stopped:
                raise ResolverStoppedError
            # Race: the assignment ended before the replica was made.
            resolution.status = pc.Status.SHARD_STOPPED
            yield resolution
            return
        with replica.in_use():
            if await _is_served(replica, read_through or {}):
                resolution.shard, resolution.store = replica, replica.store
                yield resolution
                return
        resolution.status = pc.Status.SHARD_STOPPED
        yield resolution

    @property
    def process_id(self) -> pb.ProcessSpec.ID:
        """Identity of this member."""
        if self._group.local_member is None:
            return _MISSING_MEMBER
        return pb.ProcessSpec.ID(zone=self._group.local.zone, suffix=self._group.local.suffix)

    def unrouted_header(self) -> pb.Header:
        """Return a header of this member and its revision, without a route."""
        header = self._service.key_space.header
        etcd = pb.Header.Etcd(
            cluster_id=header.cluster_id,
            member_id=header.member_id,
            revision=header.revision,
            raft_term=header.raft_term,
        )
        return pb.Header(process_id=self.process_id, route=pb.Route(primary=-1), etcd=etcd)

    def route(self, shard: str) -> pb.Route:
        """Return the members that a shard is assigned to, in the order of their keys.

        A member that is gone has an empty endpoint.
        """
        route = pb.Route(primary=-1)
        for index, assignment in enumerate(self._group.assignments(shard)):
            if assignment.slot == 0:
                route.primary = index
            zone, suffix = assignment.member
            route.members.add(zone=zone, suffix=suffix)
            member = self._group.members.get(assignment.member)
            route.endpoints.append(member.spec.process_spec.endpoint if member is not None else "")
        return route

    def item(self, shard: str, claims: pb.Claims | None) -> Item | None:
        """Return a shard of the group, if it exists and the claims match it."""
        item = self._group.items.get(shard)
        if item is None or claims is None:
            return item
        is_visible = pb.selector_matches(claims.selector, pc.label_set_ext(item.spec))
        return item if is_visible else None

    async def _accept(self, header: pb.Header) -> None:
        """Check that a proxied request is meant for this member, and catch up with the sender."""
        cluster_id = self._service.key_space.header.cluster_id
        if header.etcd.cluster_id != cluster_id:
            raise ResolverError(
                "request Etcd ClusterId doesn't match our own "
                f"({header.etcd.cluster_id} vs {cluster_id})"
            )
        asked, own = header.process_id, self.process_id
        if (asked.zone or asked.suffix) and asked != own:
            raise ResolverError(
                f"request ProcessId doesn't match our own ({_text(asked)} vs {_text(own)})"
            )
        await self._service.key_space.wait_for_revision(header.etcd.revision)

    def _route(
        self, shard: str, claims: pb.Claims | None, *, may_proxy: bool
    ) -> tuple[Resolution, MemberID | None]:
        """Return the resolution of a shard before its replica is waited for, and its primary."""
        header = self.unrouted_header()
        item = self.item(shard, claims)
        if item is None:
            # Assignments of a shard that the caller may not see, or that was deleted, aren't shown.
            if shard not in self._group.items:
                header.route.CopyFrom(self.route(shard))
            return Resolution(pc.Status.SHARD_NOT_FOUND, header), None
        header.route.CopyFrom(self.route(shard))
        resolution = Resolution(pc.Status.OK, header, item.spec)
        if header.route.primary < 0:
            resolution.status = pc.Status.NO_SHARD_PRIMARY
            return resolution, None
        primary = self._group.assignments(shard)[header.route.primary].member
        if primary != self._group.local and not may_proxy:
            resolution.status = pc.Status.NOT_SHARD_PRIMARY
        header.process_id.CopyFrom(header.route.members[header.route.primary])
        return resolution, primary


async def _is_served(replica: Replica, read_through: Mapping[str, int]) -> bool:
    """Wait for the store and for offsets, and return False if the replica ends before."""
    progress = replica.progress_cell
    while not replica.is_ready:
        changed = progress.changed.next()
        if replica.primary_loop.done():
            return False
        await changed.wait()
    offsets = await _offsets(replica, read_through)
    while not progress.covers(offsets):
        changed = progress.changed.next()
        if replica.primary_loop.done():
            return False
        await changed.wait()
    return not replica.cancelled.is_set()


async def _offsets(replica: Replica, read_through: Mapping[str, int]) -> Mapping[str, int]:
    producer = replica.hooks.producer
    if producer is None:
        return {
            journal: offset for journal, offset in read_through.items() if journal in replica.reads
        }
    assert replica.store is not None, "ready replicas have stores"
    try:
        through = producer.read_through(replica, replica.store, read_through)
        offsets: Mapping[str, int] = await awaited(through)
    except Exception as error:
        raise ResolverError(f"MessageProducer.ReadThrough: {error}") from error
    return offsets


def _text(process: pb.ProcessSpec.ID) -> str:
    return f'zone:"{process.zone}" suffix:"{process.suffix}" '
