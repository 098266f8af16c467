"""Headers of responses: the broker, its key space, and the route of a journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from gazette_aio.broker.keyspace.data_directory import ClusterIdentity
    from gazette_aio.broker.keyspace.keyspace import KeySpace


class Headers:
    """Headers of a broker, at the present revision of its key space."""

    def __init__(
        self,
        process_id: pb.ProcessSpec.ID,
        endpoint: str,
        identity: ClusterIdentity,
        space: KeySpace,
    ) -> None:
        self.process_id = process_id
        self.identity = identity
        self.route: pb.Route = pb.Route(members=[process_id], endpoints=[endpoint])
        self.no_route: pb.Route = pb.Route(primary=-1)
        self._space = space
        self._routed = pb.Header()
        self._unrouted = pb.Header()

    def routed(self) -> pb.Header:
        """Return the header of a journal that the broker serves. Don't modify the header."""
        return self._at_revision("_routed", self.route)

    def unrouted(self) -> pb.Header:
        """Return the header of other responses. Don't modify the header."""
        return self._at_revision("_unrouted", self.no_route)

    def _at_revision(self, name: str, route: pb.Route) -> pb.Header:
        header: pb.Header = getattr(self, name)
        if header.etcd.revision != self._space.revision:
            header = pb.Header(
                process_id=self.process_id,
                route=route,
                etcd=pb.Header.Etcd(
                    cluster_id=self.identity.cluster_id,
                    member_id=self.identity.member_id,
                    revision=self._space.revision,
                    raft_term=self.identity.raft_term,
                ),
            )
            setattr(self, name, header)
        return header


def empty_header() -> pb.Header:
    """Return a header whose parts are present and empty."""
    header = pb.Header()
    header.process_id.SetInParent()
    header.route.SetInParent()
    header.etcd.SetInParent()
    return header
