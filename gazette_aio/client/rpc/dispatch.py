"""Dispatch of RPCs: to a member of the journal's route, or to the default address.

Routing never delays an RPC. While there is no connection to the chosen member, one is made in the
background, and the RPC goes to the default address, whose broker proxies it. Only requests that
forbid to proxy wait for members.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import random
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, Generic

import grpc
import grpc.aio

import gazette_aio.protocol as pb
from gazette_aio.aio.task import end_from_anywhere
from gazette_aio.client.options import DEFAULT_ZONE, TLSOptions
from gazette_aio.client.retry import MASKED_CODE, MASKED_DETAILS
from gazette_aio.client.rpc.channel_pool import ChannelPool, MemberConnection, MethodsT
from gazette_aio.client.rpc.dial import Dialler
from gazette_aio.client.rpc.errors import at_once, when_done
from gazette_aio.client.rpc.member_choice import MemberState, Mode, members_of, pick
from gazette_aio.client.rpc.route_cache import DispatchRouter, NoopDispatchRouter
from gazette_aio.protocol.endpoint import Endpoint, parse_endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from gazette_aio.client.status import MemberStatus

_logger = logging.getLogger(__name__)

_MEMBER_SCHEMES: Final = {
    "http": frozenset({"http", "https"}),
    "https": frozenset({"https"}),
    "unix": frozenset({"unix", "https"}),
}
"""Schemes of members that are dialled, by scheme of the default address.

No broker can make a client send its tokens in the clear, and a socket's path means something only
on the machine of its broker.
"""

_NO_BROKER: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED)
"""Codes by which a proxy, or another server at a member's endpoint, answers in its place."""

_SHORT_WAIT: Final = 1.0
"""Seconds of waiting for a broker that aren't worth a log record."""

_connected: Final[set[weakref.ref[Dispatcher[Any]]]] = set()
"""Dispatchers with connections. One that is collected has none: gRPC closes its channels."""

_of_parents: Final[list[object]] = []
"""Connections inherited from the process that forked this one."""


def _check_process() -> None:
    # Race: gRPC polls in a thread, which a forked process doesn't have, although it has copies of
    # everything that waits for the thread: it would hang.
    # Race: clients of other threads may connect meanwhile. A copy is made in one step.
    connected = (each() for each in _connected.copy())
    if _of_parents or any(each is not None and each.is_of_parent() for each in connected):
        raise pb.UsageError(
            "this process was forked while a client was connected, which gRPC doesn't survive; "
            "close clients before, or start processes by the method spawn"
        )


class Dispatcher(Generic[MethodsT]):
    """Chooses the connection of each RPC, and dials brokers when they're first needed.

    Args:
        address: Default endpoint: `http`, `https` or `unix`.
        methods: Makes the methods of the service on a channel.
        tls: TLS of `https` endpoints.
        connect_timeout: Seconds within which a broker must answer to calls that wait for it.
        router: Routes of journals, or of shards; None for no routing.
        zone: Zone of this process.
        peer: Kind of the members, for texts.

    Raises:
        ValidationError: `address` isn't an endpoint.
    """

    def __init__(
        self,
        address: str,
        methods: Callable[[grpc.aio.Channel], MethodsT],
        tls: TLSOptions,
        *,
        connect_timeout: float,
        router: DispatchRouter | None = None,
        zone: str = DEFAULT_ZONE,
        peer: str = "broker",
    ) -> None:
        parsed = _parsed_address(address)
        self.endpoint = address
        self.peer = peer
        """Kind of the members."""
        self.router: DispatchRouter = NoopDispatchRouter() if router is None else router
        """Routes of journals, or of shards."""
        self._scheme = parsed.scheme
        self._target = parsed.grpc_target
        self._dial = Dialler(tls)
        self._connect_timeout = connect_timeout
        self._zone = zone
        self._default: MemberConnection[MethodsT] | None = None
        self._methods = methods
        self.pool: ChannelPool[MethodsT] = ChannelPool(self._dial, methods)
        """Connections to members of routes."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
        self._waits_since: float | None = None
        self._closed = False

    @property
    def is_dialled(self) -> bool:
        """Whether there are connections."""
        return self._default is not None

    @property
    def state(self) -> str:
        """State of the default connection.

        One of `idle`, `connecting`, `ready`, `transient_failure`, `closed`.
        """
        if self._closed:
            return "closed"
        if self._default is None:
            return "idle"
        return self._default.channel.get_state().name.lower()

    def is_of_parent(self) -> bool:
        """Whether the connections were inherited from the process that forked this one."""
        return self._default is not None and self._process != os.getpid()

    def members(self) -> tuple[MemberStatus, ...]:
        """Return the connections to members of routes."""
        return self.pool.status()

    def check(self) -> None:
        """Refuse to work after `aclose()`, after a fork, and in another event loop.

        Raises:
            UsageError: The client can't be used here.
        """
        if self._closed:
            raise pb.UsageError(f"the client of {self.endpoint} is closed")
        if self._loop is None:
            return
        if self._process != os.getpid():
            raise pb.UsageError(
                f"the client of {self.endpoint} was used before this process was forked; "
                "create a client in each process"
            )
        if self._loop is not asyncio.get_running_loop():
            raise pb.UsageError(
                f"the client of {self.endpoint} belongs to another event loop; "
                "create a client in each event loop"
            )

    def default(self) -> MemberConnection[MethodsT]:
        """Return the connection to the default address.

        Raises:
            UsageError: The client is closed, was forked, or belongs to another event loop.
            ConfigurationError: The TLS files can't be read.
        """
        self.check()
        if self._default is None:
            _check_process()
            self._default = MemberConnection(
                self.endpoint, self._dial(self.endpoint), self._methods
            )
            self._loop = asyncio.get_running_loop()
            self._process = os.getpid()
            _connected.add(weakref.ref(self, _connected.discard))
        return self._default

    def connection(
        self, journal: str, mode: Mode, refused_by: pb.Header | None = None
    ) -> MemberConnection[MethodsT]:
        """Return the connection for an RPC that begins at once.

        Args:
            journal: Journal of the request.
            mode: Member that serves it.
            refused_by: Header of a refusal, whose route takes precedence over the cached one.

        Raises:
            UsageError: As `default()`.
            ConfigurationError: As `default()`.
        """
        default = self.default()
        member = self._member(journal, mode, refused_by)
        if member is None or member is default:
            return default
        if member.state() is not MemberState.READY:
            member.is_dubious = False  # There will be another connection.
            return default
        # A refusal leaves no choice.
        return default if member.is_dubious and refused_by is None else member

    async def reach(self, journal: str, mode: Mode, refused_by: pb.Header | None = None) -> None:
        """Wait until the connection to the chosen member stands or has failed.

        Raises:
            UsageError: As `default()`.
            ConfigurationError: As `default()`.

        Cancellation: safe.
        """
        self.default()
        member = self._member(journal, mode, refused_by)
        if member is None or member is self._default:
            return
        member.rpcs += 1  # It's in use.
        try:
            await member.connect(self._connect_timeout)
        finally:
            member.rpcs -= 1

    def follow(
        self, call: grpc.aio.Call, connection: MemberConnection[MethodsT], journal: str
    ) -> None:
        """Keep a connection in use during an RPC, and note how the RPC ends."""
        if connection is not self._default:
            connection.rpcs += 1
            when_done(call, functools.partial(self._ended, connection, journal))

    def _ended(
        self, connection: MemberConnection[MethodsT], journal: str, call: grpc.aio.Call
    ) -> None:
        connection.rpcs -= 1
        connection.is_used = True
        code = at_once(call.code())
        if code in _NO_BROKER or (
            code is not None
            and code.name == MASKED_CODE
            and at_once(call.details()) == MASKED_DETAILS
        ):
            connection.is_dubious = True
            self.router.update_route(journal, None)

    def _member(
        self, journal: str, mode: Mode, refused_by: pb.Header | None
    ) -> MemberConnection[MethodsT] | None:
        if refused_by is None:
            members = self.router.members(journal)
        else:
            members = members_of(refused_by.route)
        if members is None:
            return None
        if mode is Mode.PRIMARY:
            endpoint = members.primary  # Whatever its state: no other member can append.
        else:
            replicas = ((zone, each, self._state_of(each)) for zone, each in members.replicas)
            endpoint = pick(replicas, self._zone, random.random)
        if endpoint is None:
            return None
        if (member := self.pool.connections.get(endpoint)) is not None:
            member.is_used = True
            return member
        if self._is_default(endpoint):
            return self._default
        return self.pool.connection(endpoint) if self._may_dial(endpoint) else None

    def _state_of(self, endpoint: str) -> MemberState | None:
        if (member := self.pool.connections.get(endpoint)) is not None:
            return member.state()
        if self._default is not None and self._is_default(endpoint):
            return self._default.state()
        return MemberState.IDLE if self._may_dial(endpoint) else None

    def _is_default(self, endpoint: str) -> bool:
        if endpoint == self.endpoint:
            return True
        parsed = _parsed(endpoint)
        return (
            parsed is not None
            and parsed.scheme == self._scheme
            and parsed.grpc_target == self._target
        )

    def _may_dial(self, endpoint: str) -> bool:
        parsed = _parsed(endpoint)
        return parsed is not None and parsed.scheme in _MEMBER_SCHEMES[self._scheme]

    async def ready(self) -> MemberConnection[MethodsT]:
        """Wait for the broker at the default address to answer, and return its connection.

        Raises:
            TransportError: It didn't answer within the connect time-out.

        Cancellation: safe.
        """
        connection = self.default()
        channel = connection.channel
        if channel.get_state() is grpc.ChannelConnectivity.READY:
            self._answers()
            return connection
        try:
            async with asyncio.timeout(self._connect_timeout):
                await self._noted(connection)
        except TimeoutError:
            text = f"no {self.peer} answers at {self.endpoint} (waited {self._connect_timeout:g} s)"
            if reason := await connection.failure():
                text = f"{text}: {reason}"
            raise pb.TransportError("UNAVAILABLE", text, retryable=True) from None
        except (grpc.aio.UsageError, asyncio.InvalidStateError):
            self.check()  # Closed while we waited.
            raise
        return connection

    async def _noted(self, connection: MemberConnection[MethodsT]) -> None:
        """Wait for a connection, and log a wait that isn't short: when it begins, and its end."""
        if self._waits_since is None:
            try:
                async with asyncio.timeout(_SHORT_WAIT):
                    await connection.channel.channel_ready()
            except TimeoutError:
                pass
            else:
                return
        # Race: of the tasks that wait at the same time, one logs.
        if self._waits_since is None:
            self._waits_since = time.monotonic()
            reason = await connection.failure()
            _logger.warning(
                "waiting for a %s at %s: %s", self.peer, self.endpoint, reason or "no answer"
            )
        await connection.channel.channel_ready()
        self._answers()

    def _answers(self) -> None:
        if self._waits_since is not None:
            waited = time.monotonic() - self._waits_since
            self._waits_since = None
            _logger.warning("the %s at %s answers after %.1f s", self.peer, self.endpoint, waited)

    async def failure(self) -> str:
        """Return why the default address can't be reached, or an empty text.

        Cancellation: safe.
        """
        return "" if self._closed or self._default is None else await self._default.failure()

    async def aclose(self) -> None:
        """Close all connections, which ends their RPCs. Idempotent.

        Cancellation: safe — call again.
        """
        self._closed = True
        if (default := self._default) is None:
            return
        if self.is_of_parent():
            # Invariant: letting go of the last channel would wait for a thread of the parent.
            _of_parents.append((default, self.pool))
            self._default = None
            return
        await self.pool.aclose()
        await default.channel.close()
        # Race: another task may have closed it too.
        if self._default is default:
            self._default = None
            _connected.discard(weakref.ref(self))

    def end_from_anywhere(self, aclose: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have the event loop run `aclose()` of a client that was left behind.

        It may be called from any thread and at any time.
        """
        if self._default is None or self._loop is None:
            return
        if self.is_of_parent():
            _of_parents.append((self._default, self.pool))  # As in `aclose()`.
        else:
            end_from_anywhere(self._loop, aclose)

    def __repr__(self) -> str:
        return (
            f"<Dispatcher of {self.endpoint}, {self.state}, "
            f"{len(self.pool.connections)} connections to members>"
        )


def _parsed_address(address: str) -> Endpoint:
    reason = f"unsupported scheme of endpoint ({address})"
    try:
        if (parsed := parse_endpoint(address)).scheme in _MEMBER_SCHEMES:
            return parsed
    except pb.ValidationError as error:
        reason = str(error)
    written = f"http://{address}" if "://" not in address else "http://localhost:8080"
    raise pb.ValidationError(
        f"{reason}; write an address such as {written}, https://… or unix:///path/of/socket"
    )


@functools.lru_cache(maxsize=1024)
def _parsed(endpoint: str) -> Endpoint | None:
    try:
        return parse_endpoint(endpoint)
    except pb.ValidationError:
        return None
