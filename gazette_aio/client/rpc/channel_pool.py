"""Connections to members of routes, made on demand and closed when unused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import grpc
import grpc.aio

from gazette_aio.aio.task import start_task
from gazette_aio.client.rpc.errors import closed_channel_is_an_error, connection_failure
from gazette_aio.client.rpc.member_choice import MemberState
from gazette_aio.client.status import MemberStatus
from gazette_aio.protocol import service
from gazette_aio.proxies import proxy_of_endpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message


SWEEP_SECONDS: Final = 30.0
"""Seconds between sweeps; a connection without use for a whole interval is closed."""

MOST_CONNECTIONS: Final = 256
"""Most connections to members."""

_READY: Final = grpc.ChannelConnectivity.READY

_UNREADY: Final = {
    grpc.ChannelConnectivity.IDLE: MemberState.IDLE,
    grpc.ChannelConnectivity.CONNECTING: MemberState.CONNECTING,
    # Invariant: gRPC stays in this state until it's connected, also during further attempts.
    grpc.ChannelConnectivity.TRANSIENT_FAILURE: MemberState.FAILED,
    grpc.ChannelConnectivity.SHUTDOWN: MemberState.FAILED,
}

_FAILURE_SECONDS: Final = 1.0
_SILENCE: Final = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)

_UNRESOLVED: Final = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)


MethodsT = TypeVar("MethodsT")
"""Methods of one service on one channel."""


class JournalMethods:
    """Begins RPCs of the broker's service on one channel. Responses are left encoded.

    Args:
        channel: The channel.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.list: Any = channel.unary_stream(service.LIST, _encode)
        self.apply: Any = unary_method(channel, service.APPLY)
        self.read: Any = channel.unary_stream(service.READ, _encode)
        # Hot: its messages are encoded already, which saves copies of content.
        self.append: Any = channel.stream_unary(service.APPEND)
        self.list_fragments: Any = unary_method(channel, service.LIST_FRAGMENTS)
        self.fragment_store_health: Any = unary_method(channel, service.FRAGMENT_STORE_HEALTH)


def unary_method(channel: grpc.aio.Channel, path: str) -> Any:
    """Return a method with one request and one response, which is left encoded."""
    # Wire: grpcio returns None for a response that its deserializer fails on, so it has none.
    return cast("Any", channel).unary_unary(path, _encode)


def _encode(message: Message) -> bytes:
    return message.SerializeToString()


class MemberConnection(Generic[MethodsT]):
    """A channel to one endpoint.

    Args:
        endpoint: The endpoint.
        channel: The channel.
        methods: Makes the methods of the service.
    """

    def __init__(
        self,
        endpoint: str,
        channel: grpc.aio.Channel,
        methods: Callable[[grpc.aio.Channel], MethodsT],
    ) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.methods = methods(channel)
        self.rpcs = 0
        """RPCs in progress; not counted for the default connection."""
        self.is_used = True
        """Whether it was used after the last sweep."""
        self.is_overdue: bool = False
        """Whether an RPC waited for it until its time-out."""
        self.is_dubious = False
        """Whether, after the last sweep, something else than a member answered an RPC."""

    def state(self) -> MemberState:
        """Return the state, and connect if there's no connection."""
        state = self.channel.get_state(try_to_connect=True)
        if state is _READY:
            self.is_overdue = False
            return MemberState.READY
        return MemberState.FAILED if self.is_overdue else _UNREADY[state]

    def is_ready(self) -> bool:
        """Return whether it's connected at this moment."""
        return self.channel.get_state() is _READY

    async def connect(self, timeout_seconds: float) -> None:
        """Wait for the outcome of the attempt to connect, within a time-out.

        Cancellation: safe.
        """
        if self.state() is MemberState.FAILED:
            return
        try:
            async with asyncio.timeout(timeout_seconds):
                # Race: the state changes at any time, so each turn reads it once.
                while (seen := self.channel.get_state(try_to_connect=True)) in _UNRESOLVED:
                    await self.channel.wait_for_state_change(seen)
        except TimeoutError:
            self.is_overdue = True

    async def failure(self) -> str:
        """Return why the endpoint can't be reached, or an empty text if that isn't known.

        Raises:
            TransportError: The channel was closed meanwhile.

        Cancellation: safe.
        """
        if self.channel.get_state() is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            return ""
        # Wire: gRPC reports the reason to RPCs only.
        if (error := await self._probe(_FAILURE_SECONDS)) is None:
            return ""
        details = connection_failure(error.details() or "")
        proxy = proxy_of_endpoint(self.endpoint)
        return details if proxy is None else f"{details} (through the proxy {proxy})"

    async def answers(self, timeout_seconds: float) -> bool:
        """Return whether the server answers within a time-out, and not only its machine's network.

        Raises:
            TransportError: The channel was closed meanwhile.

        Cancellation: safe.
        """
        error = await self._probe(timeout_seconds)
        return error is None or error.code() not in _SILENCE

    async def _probe(self, timeout_seconds: float) -> grpc.aio.AioRpcError | None:
        try:
            # It has no method, so that each server refuses it at once, whatever the claims.
            method = cast("Any", self.channel.unary_unary)("/")
            with closed_channel_is_an_error():
                await method(b"", timeout=timeout_seconds)
        except grpc.aio.AioRpcError as error:
            return error
        return None

    def __repr__(self) -> str:
        return f"<MemberConnection to {self.endpoint}, {self.rpcs} RPCs>"


class ChannelPool(Generic[MethodsT]):
    """Pool of one connection per member in use.

    Sweeps close connections that were unused since the sweep before, as long as there are any.

    Args:
        dial: Makes the channel to an endpoint.
        methods: Makes the methods of the service on a channel.
        sweep_seconds: Seconds between sweeps.
    """

    def __init__(
        self,
        dial: Callable[[str], grpc.aio.Channel],
        methods: Callable[[grpc.aio.Channel], MethodsT],
        *,
        sweep_seconds: float = SWEEP_SECONDS,
    ) -> None:
        self.connections: dict[str, MemberConnection[MethodsT]] = {}
        """Connections by endpoint."""
        self._dial = dial
        self._methods = methods
        self._sweep_seconds = sweep_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def connection(self, endpoint: str) -> MemberConnection[MethodsT] | None:
        """Return the connection to an endpoint, new or not, or None if there are too many."""
        connection = self.connections.get(endpoint)
        if connection is None:
            if len(self.connections) >= MOST_CONNECTIONS:
                return None
            connection = self.connections[endpoint] = MemberConnection(
                endpoint, self._dial(endpoint), self._methods
            )
            self._schedule()
        connection.is_used = True
        return connection

    def sweep(self) -> None:
        """Close connections without use since the last sweep and without RPCs."""
        for connection in tuple(self.connections.values()):
            connection.is_dubious = False
            if connection.is_used or connection.rpcs:
                connection.is_used = False
                continue
            del self.connections[connection.endpoint]
            closing = start_task(connection.channel.close(), "gazette end of a channel")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def status(self) -> tuple[MemberStatus, ...]:
        """Return the state of each connection."""
        return tuple(
            MemberStatus(
                connection.endpoint,
                connection.channel.get_state().name.lower(),
                connection.rpcs,
            )
            for connection in self.connections.values()
        )

    async def aclose(self) -> None:
        """Close all connections, which ends their RPCs. Idempotent.

        Cancellation: safe — call again.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for endpoint, connection in tuple(self.connections.items()):
            await connection.channel.close()
            self.connections.pop(endpoint, None)
        if self._closing:
            await asyncio.wait(tuple(self._closing))

    def _schedule(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._sweep_seconds, self._sweep_again)

    def _sweep_again(self) -> None:
        self._timer = None
        self.sweep()
        if self.connections:
            self._schedule()

    def __repr__(self) -> str:
        return f"<ChannelPool of {len(self.connections)} connections>"
