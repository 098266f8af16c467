"""Methods of the broker's gRPC service."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from gazette_aio.protocol._generated import broker_pb2 as pb

SERVICE_NAME: Final = "protocol.Journal"

LIST: Final = "/protocol.Journal/List"
APPLY: Final = "/protocol.Journal/Apply"
READ: Final = "/protocol.Journal/Read"
APPEND: Final = "/protocol.Journal/Append"
REPLICATE: Final = "/protocol.Journal/Replicate"
LIST_FRAGMENTS: Final = "/protocol.Journal/ListFragments"
FRAGMENT_STORE_HEALTH: Final = "/protocol.Journal/FragmentStoreHealth"


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
"""Methods of the service, by path."""
