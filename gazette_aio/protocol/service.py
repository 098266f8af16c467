"""Methods of the gRPC services of brokers and of consumers."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from gazette_aio.protocol._generated import broker_pb2 as pb
from gazette_aio.protocol._generated import consumer_pb2 as pc

SERVICE_NAME: Final = "protocol.Journal"
SHARD_SERVICE_NAME: Final = "consumer.Shard"

LIST: Final = "/protocol.Journal/List"
APPLY: Final = "/protocol.Journal/Apply"
READ: Final = "/protocol.Journal/Read"
APPEND: Final = "/protocol.Journal/Append"
REPLICATE: Final = "/protocol.Journal/Replicate"
LIST_FRAGMENTS: Final = "/protocol.Journal/ListFragments"
FRAGMENT_STORE_HEALTH: Final = "/protocol.Journal/FragmentStoreHealth"

SHARD_STAT: Final = "/consumer.Shard/Stat"
SHARD_LIST: Final = "/consumer.Shard/List"
SHARD_APPLY: Final = "/consumer.Shard/Apply"
SHARD_GET_HINTS: Final = "/consumer.Shard/GetHints"
SHARD_UNASSIGN: Final = "/consumer.Shard/Unassign"


class RPCMethod(NamedTuple):
    """Method of a gRPC service."""

    path: str
    """Full path, such as `/protocol.Journal/Read`."""
    request: type[Any]
    """Class of the request message."""
    response: type[Any]
    """Class of the response message."""
    client_streaming: bool = False
    server_streaming: bool = False

    @property
    def name(self) -> str:
        """Bare name of the method, such as `Read`."""
        return self.path.rpartition("/")[2]


METHODS: Final[dict[str, RPCMethod]] = {
    method.path: method
    for method in (
        # Wire: List is unary before v0.100, which looks like a stream of one message.
        RPCMethod(LIST, pb.ListRequest, pb.ListResponse, server_streaming=True),
        RPCMethod(APPLY, pb.ApplyRequest, pb.ApplyResponse),
        RPCMethod(READ, pb.ReadRequest, pb.ReadResponse, server_streaming=True),
        RPCMethod(APPEND, pb.AppendRequest, pb.AppendResponse, client_streaming=True),
        RPCMethod(
            REPLICATE,
            pb.ReplicateRequest,
            pb.ReplicateResponse,
            client_streaming=True,
            server_streaming=True,
        ),
        RPCMethod(LIST_FRAGMENTS, pb.FragmentsRequest, pb.FragmentsResponse),
        RPCMethod(
            FRAGMENT_STORE_HEALTH, pb.FragmentStoreHealthRequest, pb.FragmentStoreHealthResponse
        ),
    )
}
"""Methods of the service of journals, by path."""

SHARD_METHODS: Final[dict[str, RPCMethod]] = {
    method.path: method
    for method in (
        RPCMethod(SHARD_STAT, pc.StatRequest, pc.StatResponse),
        RPCMethod(SHARD_LIST, pc.ListRequest, pc.ListResponse),
        RPCMethod(SHARD_APPLY, pc.ApplyRequest, pc.ApplyResponse),
        RPCMethod(SHARD_GET_HINTS, pc.GetHintsRequest, pc.GetHintsResponse),
        RPCMethod(SHARD_UNASSIGN, pc.UnassignRequest, pc.UnassignResponse),
    )
}
"""Methods of the service of shards, by path."""
