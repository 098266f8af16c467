"""Client of a cluster of Etcd: calls that are repeated where it's safe, and watches that resume."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import grpc.aio
from google.protobuf.message import DecodeError

from gazette_aio.client.options import TLSOptions
from gazette_aio.client.rpc.channel_pool import unary_method
from gazette_aio.client.rpc.dial import Dialler
from gazette_aio.client.rpc.errors import is_being_cancelled
from gazette_aio.consumer.keyspace.errors import (
    CompactedError,
    KeyValueStoreError,
    StoreRefusedError,
    StoreUnavailableError,
)
from gazette_aio.consumer.keyspace.etcd import failures, messages
from gazette_aio.consumer.keyspace.etcd._generated import etcd_pb2 as pb
from gazette_aio.consumer.keyspace.etcd.cursor import (
    WatchCursor,
    WatchDeniedError,
    back_off_seconds,
)
from gazette_aio.consumer.keyspace.etcd.peers import Peers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from google.protobuf.message import Message

    from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
    from gazette_aio.consumer.keyspace.etcd.peers import Peer
    from gazette_aio.consumer.keyspace.store import WatchResponse

R = TypeVar("R", bound="Message")

_logger = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS: Final = 0.025
_LAST_PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True)
class RPC(Generic[R]):
    """An RPC, with one request and one response but for the watch."""

    path: str
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
        try:
            return self.response.FromString(data)
        except DecodeError as error:
            raise KeyValueStoreError(
                f"the server isn't Etcd: {error}", outcome_unknown=self.writes
            ) from None


RANGE: Final = RPC("/etcdserverpb.KV/Range", pb.RangeResponse)
TXN: Final = RPC("/etcdserverpb.KV/Txn", pb.TxnResponse, writes=True, repeats=False)
READING_TXN: Final = RPC("/etcdserverpb.KV/Txn", pb.TxnResponse)
# A lease whose grant is repeated expires unused.
LEASE_GRANT: Final = RPC("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantResponse, writes=True)
LEASE_REVOKE: Final = RPC("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeResponse, writes=True)
# Wire: Etcd streams these. A call with one request and one response looks the same.
LEASE_KEEP_ALIVE: Final = RPC("/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveResponse)
AUTHENTICATE: Final = RPC("/etcdserverpb.Auth/Authenticate", pb.AuthenticateResponse)
STATUS: Final = RPC("/etcdserverpb.Maintenance/Status", pb.StatusResponse)
WATCH: Final = RPC("/etcdserverpb.Watch/Watch", pb.WatchResponse)

_CHANNEL_OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
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


class EtcdClient:
    """Calls the members of a cluster, of which the one that serves is kept until it fails.

    Args:
        options: Options of the client.

    Attributes:
        options: Options of the client.
        dialler: Makes the channel to an endpoint.
        peers: Members of the cluster.
        token: The user's token; empty without a user, and before the first call.
    """

    def __init__(self, options: EtcdOptions) -> None:
        self.options: EtcdOptions = options
        self.dialler: Dialler = Dialler(options.tls or TLSOptions(), _CHANNEL_OPTIONS)
        self.peers: Peers = Peers(options.endpoints, self.dialler)
        self.token: str = ""
        self._is_auth_disabled = False
        self._authenticating = asyncio.Lock()
        self._checked: set[str] = set()
        self.cluster_id: int = 0
        """Identity of the cluster, 0 before the first call."""

    @property
    def _has_user(self) -> bool:
        """Whether calls have a token."""
        return bool(self.options.user) and not self._is_auth_disabled

    async def connect(self) -> None:
        """Wait until a member answers, and have a token.

        Raises:
            KeyValueStoreError: The user or the password is wrong, or Etcd is too old.

        Cancellation: safe.
        """
        await self._authenticate(await self._peer())

    async def unary(self, rpc: RPC[R], request: Message) -> R:
        """Call an RPC, and return its response.

        A call that surely had no effect is repeated while Etcd is unavailable, for the time that
        options say; so is any call that may be repeated.

        Raises:
            KeyValueStoreError: It failed.

        Cancellation: aborts — if the RPC writes, whether it took effect is unknown.
        """
        return (await self.timed_unary(rpc, request))[0]

    async def timed_unary(self, rpc: RPC[R], request: Message) -> tuple[R, float]:
        """Call an RPC as `unary()` does.

        Returns:
            The response, and a reading of `time.monotonic()` before the request was sent.

        Cancellation: aborts — whether a write took effect is unknown then.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + self.options.retry_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                peer = await self._peer(max(end - loop.time(), 0.0))
                began = time.monotonic()
                return await self._authorized(peer, rpc, request), began
            except StoreUnavailableError as error:
                if loop.time() >= end or not (rpc.repeats or failures.may_repeat(error)):
                    raise
                _logger.info("%s is repeated: %s", rpc.path, error)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(pause * 2, _LAST_PAUSE_SECONDS)

    async def _peer(self, timeout_seconds: float | None = None) -> Peer:
        """Return a connected member that is new enough.

        Args:
            timeout_seconds: Time to wait for a connection, or None to wait for ever.

        Raises:
            StoreRefusedError: The member is too old, or of another cluster.
            StoreUnavailableError: No member can be reached, or it fails.

        Cancellation: safe.
        """
        peer = await self.peers.ready(timeout_seconds)
        if peer.endpoint not in self._checked:
            self._check(peer, await self._authorized(peer, STATUS, pb.StatusRequest()))
        return peer

    def _check(self, peer: Peer, status: pb.StatusResponse) -> None:
        """Check a member at its first use."""
        if failures.too_old(status.version):
            raise StoreRefusedError(
                f"Etcd {status.version} at {peer.endpoint} is too old: 3.4 or newer is needed"
            )
        cluster = status.header.cluster_id
        self.cluster_id = self.cluster_id or cluster
        if cluster != self.cluster_id:
            raise StoreRefusedError(f"Etcd at {peer.endpoint} is of another cluster")
        self._checked.add(peer.endpoint)

    async def _authenticate(self, peer: Peer, stale: str | None = None) -> str:
        """Return the user's token, empty without a user.

        Args:
            peer: Member to ask for a new token.
            stale: Token that is refused, so that a new one is needed.

        Raises:
            KeyValueStoreError: The user or the password is wrong, or Etcd fails.

        Cancellation: safe.
        """
        if not self._has_user:
            return ""
        if self.token not in ("", stale):
            return self.token
        async with self._authenticating:
            if self.token in ("", stale):
                self.token = await self._new_token(peer)
            return self.token

    async def replace_token(self, stale: str) -> None:
        """Have another token than the one that was refused.

        Raises:
            KeyValueStoreError: The user or the password is wrong, or Etcd fails.

        Cancellation: safe.
        """
        self._is_auth_disabled = False
        await self._authenticate(await self._peer(), stale)

    async def _new_token(self, peer: Peer) -> str:
        request = pb.AuthenticateRequest(name=self.options.user, password=self.options.password)
        try:
            return (await self._attempt(peer, AUTHENTICATE, request, "")).token
        except KeyValueStoreError as error:
            if not failures.is_auth_disabled(error):
                raise
            _logger.warning("Etcd asks for no user, so that none is named")
            self._is_auth_disabled = True
            return ""

    async def _authorized(self, peer: Peer, rpc: RPC[R], request: Message) -> R:
        token = await self._authenticate(peer)
        try:
            return await self._attempt(peer, rpc, request, token)
        except KeyValueStoreError as error:
            if not (self.options.user and failures.is_stale_token(error)):
                raise
        self._is_auth_disabled = False
        # Etcd refused the request before it looked at it, so that even a write can be repeated.
        token = await self._authenticate(peer, stale=token)
        return await self._attempt(peer, rpc, request, token)

    async def _attempt(self, peer: Peer, rpc: RPC[R], request: Message, token: str) -> R:
        method = unary_method(peer.channel, rpc.path)
        options = {"timeout": self.options.timeout_seconds, "metadata": metadata(token)}
        try:
            return rpc.decode(await _answer(method(request, **options), writes=rpc.writes))
        except StoreUnavailableError:
            self.peers.avoid(peer)
            raise

    async def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchResponse, None]:
        """Iterate changes from `start_revision` on. See `KeyValueStore.watch`.

        Cancellation: safe — the iteration ends, and the watch with it.
        """
        cursor = WatchCursor(start_revision)
        token = ""  # The one that the watch was refused with.
        while True:
            used = token
            await asyncio.sleep(back_off_seconds(cursor.attempt))
            cursor.begin()
            try:
                peer = await self._peer()
                used = await self._authenticate(peer, stale=token or None)
                try:
                    async with aclosing(self._stream(peer, used, prefix, cursor)) as responses:
                        async for response in responses:
                            token = ""
                            yield response
                except StoreUnavailableError:
                    self.peers.avoid(peer)
                    raise
            except CompactedError:
                raise
            except StoreRefusedError as error:
                is_stale = isinstance(error, WatchDeniedError) or failures.is_stale_token(error)
                # A second token doesn't help where the first one wasn't outdated.
                if not (is_stale and self._has_user) or token:
                    raise
                token = used
            except StoreUnavailableError as error:
                _logger.info("the watch of %s begins again: %s", prefix, error)

    async def _stream(
        self, peer: Peer, token: str, prefix: str, cursor: WatchCursor
    ) -> AsyncGenerator[WatchResponse, None]:
        """Iterate the responses of one stream, until it fails."""
        call = cast("Any", peer.channel.stream_stream(WATCH.path))(metadata=metadata(token))
        try:
            async with asyncio.timeout(self.options.timeout_seconds):
                request = messages.watch_request(prefix, cursor.revision)
                await _answer(call.write(request.SerializeToString()))
                message = await _next(call.read())
            while True:
                if (response := cursor.receive(message)) is not None:
                    yield response
                message = await _next(call.read())
        except TimeoutError:
            raise StoreUnavailableError("Etcd doesn't begin the watch in time") from None
        finally:
            call.cancel()
            # Invariant: an error that is kept doesn't keep its call, which tracebacks lead to.
            del call


async def _answer(waiting: Any, *, writes: bool = False) -> Any:
    """Await what a call of grpcio answers.

    Raises:
        KeyValueStoreError: The call failed, or its channel was closed.

    Cancellation: aborts — the call is cancelled.
    """
    try:
        return await waiting
    except grpc.aio.AioRpcError as error:
        raise failures.failure(
            error.code().name, error.details() or "", writes=writes
        ) from error.with_traceback(None)
    except asyncio.InvalidStateError:
        raise StoreUnavailableError("the call has ended", outcome_unknown=writes) from None
    except asyncio.CancelledError as error:
        error.with_traceback(None)
        if is_being_cancelled():
            raise
        # Wire: so grpcio reports that a channel was closed.
        raise StoreUnavailableError(
            "the connection to Etcd was closed", code="CANCELLED", outcome_unknown=writes
        ) from None
    finally:
        # Invariant: an error that is kept doesn't keep its call, which tracebacks lead to.
        del waiting


async def _next(reading: Any) -> pb.WatchResponse:
    data = await _answer(reading)
    if data is grpc.aio.EOF:
        raise StoreUnavailableError("Etcd has ended the watch's stream")
    return WATCH.decode(data)


def metadata(token: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call: a member without a leader refuses it at once."""
    return (("hasleader", "true"), *((("token", token),) if token else ()))
