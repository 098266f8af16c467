"""RPCs of Etcd that consumers call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from google.protobuf.message import DecodeError

from gazette_aio.client.rpc.channel_pool import unary_method
from gazette_aio.consumer.keyspace.errors import KeyValueStoreError
from gazette_aio.consumer.keyspace.etcd._generated import etcd_pb2 as pb

if TYPE_CHECKING:
    import grpc.aio
    from google.protobuf.message import Message

Q = TypeVar("Q", bound="Message")
R = TypeVar("R", bound="Message")


@dataclass(frozen=True)
class RPC(Generic[Q, R]):
    """An RPC with one request and one response."""

    path: str
    request: type[Q]
    response: type[R]
    writes: bool = False
    """Whether it changes something, so that the outcome of a failed call may be unknown."""
    repeats: bool = True
    """Whether it may be repeated though its outcome is unknown."""

    def decode(self, data: bytes) -> R:
        """Return the response.

        Raises:
            KeyValueStoreError: It isn't one of Etcd.
        """
        return decoded(self.response, data, outcome_unknown=self.writes)


RANGE: Final = RPC("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse)
TXN: Final = RPC("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse, writes=True, repeats=False)
# A lease whose grant is repeated expires unused.
LEASE_GRANT: Final = RPC(
    "/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse, writes=True
)
LEASE_REVOKE: Final = RPC(
    "/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse, writes=True
)
# Wire: Etcd streams these. A call with one request and one response looks the same.
LEASE_KEEP_ALIVE: Final = RPC(
    "/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse
)
AUTHENTICATE: Final = RPC(
    "/etcdserverpb.Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse
)
STATUS: Final = RPC("/etcdserverpb.Maintenance/Status", pb.StatusRequest, pb.StatusResponse)
WATCH: Final = "/etcdserverpb.Watch/Watch"

CHANNEL_OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Time for an attempt to connect, with TLS, before it's given up.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.use_local_subchannel_pool", 1),
    # Wire: Etcd closes connections with pings less than 5 s apart, or without any RPC.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.ping_timeout_ms", 5_000),
)


class Methods:
    """Methods of a channel, by RPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._unary: dict[str, Any] = {}

    def unary(self, path: str) -> Any:
        """Return the method of an RPC, whose response is left encoded."""
        method = self._unary.get(path)
        if method is None:
            method = self._unary[path] = unary_method(self._channel, path)
        return method

    def watch(self, metadata: tuple[tuple[str, str], ...]) -> Any:
        """Begin a watch's stream."""
        return cast("Any", self._channel.stream_stream(WATCH))(metadata=metadata)


def metadata(token: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call: a member without a leader refuses it at once."""
    return (("hasleader", "true"), *((("token", token),) if token else ()))


def decoded(message: type[R], data: bytes, *, outcome_unknown: bool = False) -> R:
    """Return a response of Etcd.

    Raises:
        KeyValueStoreError: It isn't one.
    """
    try:
        return message.FromString(data)
    except DecodeError as error:
        raise KeyValueStoreError(
            f"the server isn't Etcd: {error}", outcome_unknown=outcome_unknown
        ) from None
