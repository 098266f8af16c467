"""Resolver of journals, by claims and by what the broker serves; and headers of responses."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import gazette_aio.protocol as pb
from gazette_aio.broker.journal.replicas import STOPPED
from gazette_aio.protocol.go.text import quote
from gazette_aio.protocol.journal import strip_meta
from gazette_aio.protocol.selector import compile_selector, with_name_prefixes
from gazette_aio.protocol.well_known import META_PREFIX
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.broker.host.clock import Deadline
    from gazette_aio.broker.keyspace.data_directory import ClusterIdentity
    from gazette_aio.broker.keyspace.keyspace import JournalItem
    from gazette_aio.broker.keyspace.space_store import KeySpaceStore
    from gazette_aio.broker.runtime import Runtime

_FULL = pb.JournalSpec.Suspend.Level.FULL


class Resolution(NamedTuple):
    """Outcome of a resolution."""

    status: pb.Status.ValueType
    header: pb.Header
    item: JournalItem | None
    """The journal, if it's found."""


class Resolver:
    """Resolves journals of the key space, and makes headers at its present revision.

    Args:
        process_id: ID of the broker.
        endpoint: Endpoint that the broker advertises.
    """

    def __init__(
        self,
        runtime: Runtime,
        store: KeySpaceStore,
        identity: ClusterIdentity,
        process_id: pb.ProcessSpec.ID,
        endpoint: str,
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._identity = identity
        self._process_id = process_id
        self._assign_delay = runtime.options.assign_delay
        self._assigned_at: dict[str, tuple[int, float]] = {}
        self._route = pb.Route(members=[process_id], endpoints=[endpoint])
        self._no_route = pb.Route(primary=-1)
        self._routed = pb.Header()
        self._unrouted = pb.Header()

    def routed(self) -> pb.Header:
        """Return the header of a journal that the broker serves. Don't modify the header."""
        if self._routed.etcd.revision != self._runtime.space.revision:
            self._routed = self._header(self._route)
        return self._routed

    def unrouted(self) -> pb.Header:
        """Return the header of other responses. Don't modify the header."""
        if self._unrouted.etcd.revision != self._runtime.space.revision:
            self._unrouted = self._header(self._no_route)
        return self._unrouted

    def _header(self, route: pb.Route) -> pb.Header:
        identity = self._identity
        return pb.Header(
            process_id=self._process_id,
            route=route,
            etcd=pb.Header.Etcd(
                cluster_id=identity.cluster_id,
                member_id=identity.member_id,
                revision=self._runtime.space.revision,
                raft_term=identity.raft_term,
            ),
        )

    async def resolve(
        self,
        journal: str,
        claims: pb.Claims,
        *,
        require_primary: bool,
        proxy_header: pb.Header | None,
        min_revision: int = 0,
        until: Deadline | None = None,
    ) -> Resolution:
        """Resolve a journal as of a revision of the key space.

        Args:
            journal: Name of the journal, which may have a metadata suffix.
            claims: Claims of the client.
            require_primary: Whether the request is for the primary broker.
            proxy_header: Header of a request that a peer forwards.
            min_revision: Revision to wait for.
            until: Time limit of waits: the end of the client's token.

        Raises:
            RpcError: The peer's request is for another broker, the revision isn't reached, or the
                broker has stopped serving.

        Cancellation: safe.
        """
        if proxy_header is not None:
            self._check_peer(proxy_header)
            min_revision = max(min_revision, proxy_header.etcd.revision)
        if self._runtime.space.revision < min_revision and not await self._store.wait_for(
            min_revision, until
        ):
            if self._runtime.ending.is_set():
                raise RpcError(STOPPED)
            raise RpcError("context deadline exceeded", "DEADLINE_EXCEEDED")
        item = self._runtime.space.get(strip_meta(journal))
        visible = visibility(claims.selector)
        if item is None or not (visible is None or visible(item.labels)):
            return Resolution(pb.Status.JOURNAL_NOT_FOUND, self.unrouted(), None)
        if item.spec.suspend.level == _FULL:
            return Resolution(pb.Status.SUSPENDED, self.unrouted(), item)
        if not self.is_assigned(item):
            status = (
                pb.Status.NO_JOURNAL_PRIMARY_BROKER
                if require_primary
                else pb.Status.INSUFFICIENT_JOURNAL_BROKERS
            )
            return Resolution(status, self.unrouted(), item)
        if self._runtime.stopped:
            raise RpcError(STOPPED)
        return Resolution(pb.Status.OK, self.routed(), item)

    def route(self, item: JournalItem) -> pb.Route:
        """Return the route of a journal."""
        if item.spec.suspend.level == _FULL or not self.is_assigned(item):
            return self._no_route
        return self._route

    def is_assigned(self, item: JournalItem) -> bool:
        """Return whether the journal has been assigned to the broker."""
        if not self._assign_delay:
            return True
        known = self._assigned_at.get(item.name)
        now = self._runtime.clock.monotonic()
        if known is None or known[0] != item.create_revision:
            known = (item.create_revision, now + self._assign_delay)
            self._assigned_at[item.name] = known
        return now >= known[1]

    def _check_peer(self, header: pb.Header) -> None:
        cluster = self._identity.cluster_id
        if header.etcd.cluster_id != cluster:
            raise RpcError(
                "request Etcd ClusterId doesn't match our own "
                f"({header.etcd.cluster_id} vs {cluster})"
            )
        theirs, ours = header.process_id, self._process_id
        if (theirs.zone or theirs.suffix) and theirs != ours:
            raise RpcError(
                f"request ProcessId doesn't match our own ({_text(theirs)} vs {_text(ours)})"
            )


def visibility(selector: pb.LabelSelector) -> Callable[[pb.LabelSet], bool] | None:
    """Return the predicate of the labels that claims with `selector` match; None for all labels."""
    if not selector.include.labels and not selector.exclude.labels:
        return None
    return compile_selector(selector)


def excluding_prefixes(claims: pb.Claims) -> pb.Claims:
    """Return claims whose selector excludes names by the label `prefix` in all requests.

    Gazette's broker derives this label for listings only, and excludes nothing from others.
    """
    selector = claims.selector
    if all(label.name != META_PREFIX for label in selector.exclude.labels):
        return claims
    exclude = with_name_prefixes(selector).exclude
    selector = pb.LabelSelector(include=selector.include, exclude=exclude)
    return dataclasses.replace(claims, selector=selector)


def _text(process_id: pb.ProcessSpec.ID) -> str:
    parts = (("zone", process_id.zone), ("suffix", process_id.suffix))
    return "".join(f"{name}:{quote(value)} " for name, value in parts if value)
