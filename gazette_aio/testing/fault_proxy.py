"""TCP proxy that causes network faults."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import warnings
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from gazette_aio.aio.owner import Owner
from gazette_aio.aio.signal import Signal
from gazette_aio.aio.task import OwnedTask
from gazette_aio.protocol.endpoint import parse_endpoint
from gazette_aio.protocol.errors import UsageError
from gazette_aio.testing.fault_schedule import LASTING, Direction, Fault, FaultKind, Faults

if TYPE_CHECKING:
    import random

_PIECE_BYTES: Final = 64 << 10
_CONNECT_SECONDS: Final = 5.0

_Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Way:
    """One direction of all connections, and its lasting faults."""

    def __init__(self) -> None:
        self.is_stalled = False
        self.delay_seconds = 0.0
        self.piece_bytes = _PIECE_BYTES
        self.bytes_left: int | None = None
        """Number of bytes which may pass before connections end."""
        self.passed_bytes = 0
        self.changed = Signal()
        """Set when the faults of this direction change."""

    async def hold_up(self) -> None:
        """Wait until received bytes may pass."""
        if self.delay_seconds:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.delay_seconds):
                    await self.changed.wait()
        await self.be_passable()

    async def be_passable(self) -> None:
        """Wait until there is no stall."""
        while self.is_stalled:
            await self.changed.wait()

    def allowance(self) -> int:
        """Return the number of bytes that may pass at once."""
        return (
            self.piece_bytes if self.bytes_left is None else min(self.piece_bytes, self.bytes_left)
        )


class _Link:
    """A client's connection, and the corresponding connection to the server."""

    def __init__(self, accepted: socket.socket) -> None:
        self.accepted: socket.socket | None = accepted
        """Accepted socket, until a stream owns it."""
        self.client: _Streams | None = None
        self.server: _Streams | None = None
        self.ended: set[Direction] = set()
        self.task = OwnedTask()

    def abort(self, *, reset: bool) -> None:
        """End both connections at once."""
        if self.accepted is not None:
            _close(self.accepted, reset=reset)
        for streams in (self.client, self.server):
            if streams is not None:
                _abort(streams[1], reset=reset)

    def end(self, way: Direction) -> None:
        """End one direction for its receiver."""
        receiver = self.server if way is Direction.TO_SERVER else self.client
        if way not in self.ended and receiver is not None:
            with contextlib.suppress(OSError, RuntimeError):  # The connection has ended.
                receiver[1].write_eof()
        self.ended.add(way)


class FaultProxy(Owner):
    """A TCP proxy between clients and a server, with faults on demand; an async context manager.

    Lasting faults affect all connections, including later ones. A stall loses nothing: bytes arrive
    after the stall. Connections that end lose the bytes in transit.

    Clients connect to the endpoints that brokers report, and would bypass the proxy. Let the broker
    advertise the proxy's address (`EmbeddedBroker(advertise=...)`), or pass `cache_size=0` to
    `connect()`.

    Args:
        upstream: Endpoint of the server: `http`, `https` or `unix`. Set the attribute `upstream` to
            change the server of later connections; None refuses them.
        host: Address to listen on.
        port: Port to listen on; 0 chooses a free port, and keeps it.

    Example:
        ```python
        async with FaultProxy(broker.endpoint) as proxy:
            async with connect(proxy.endpoint, cache_size=0) as client:
                await proxy.reset()
                await client.append("a/journal", b"content")
        ```
    """

    def __init__(
        self, upstream: str | None = None, *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        if upstream is not None:
            parse_endpoint(upstream)
        self.upstream = upstream
        """Endpoint of new connections; None refuses them."""
        self.is_refusing: bool = False
        """Whether new connections are reset at once."""
        self.accepted: int = 0
        """Number of accepted connections so far."""
        self._host = host
        self._port = port
        self._ways = {Direction.TO_SERVER: _Way(), Direction.TO_CLIENT: _Way()}
        self._listener: socket.socket | None = None
        self._links: set[_Link] = set()

    @property
    def endpoint(self) -> str:
        """Endpoint of the proxy: `http`, or `https` if the upstream is.

        Raises:
            UsageError: The proxy isn't started.
        """
        if not self._port:
            raise UsageError("the proxy isn't started")
        secure = self.upstream is not None and parse_endpoint(self.upstream).is_secure
        return f"{'https' if secure else 'http'}://{self._host}:{self._port}"

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._links)

    def passed_bytes(self, direction: Direction = Direction.BOTH) -> int:
        """Return the number of bytes that have passed so far."""
        return sum(way.passed_bytes for way in self._chosen(direction))

    def stall(self, direction: Direction = Direction.BOTH) -> None:
        """Stop all bytes until `resume()`. Connections stay open, and new ones are accepted."""
        for way in self._chosen(direction):
            way.is_stalled = True
            way.changed.set()

    def trickle(self, piece_bytes: int = 1, direction: Direction = Direction.BOTH) -> None:
        """Forward only `piece_bytes` at a time, in separate packets."""
        assert piece_bytes > 0, "nothing would pass"
        for way in self._chosen(direction):
            way.piece_bytes = piece_bytes
            way.changed.set()

    def delay(self, seconds: float, direction: Direction = Direction.BOTH) -> None:
        """Delay all bytes by `seconds`, and forward at most 64 KiB in that time."""
        for way in self._chosen(direction):
            way.delay_seconds = seconds
            way.changed.set()

    def cut_after(self, count: int, direction: Direction = Direction.BOTH) -> None:
        """End all connections once, after `count` bytes have passed in a direction."""
        for way in self._chosen(direction):
            way.bytes_left = count
            way.changed.set()

    def resume(self, direction: Direction = Direction.BOTH) -> None:
        """End the faults of `stall()`, `trickle()`, `delay()` and `cut_after()`."""
        for way in self._chosen(direction):
            way.is_stalled, way.delay_seconds = False, 0.0
            way.piece_bytes, way.bytes_left = _PIECE_BYTES, None
            way.changed.set()

    def heal(self) -> None:
        """End all lasting faults."""
        self.is_refusing = False
        self.resume()

    async def cut(self) -> None:
        """Close all connections orderly, in the middle of their data.

        Cancellation: safe — closing continues.
        """
        await self._end_links(reset=False)

    async def reset(self) -> None:
        """Reset all connections, like the crash of a peer or of a middlebox.

        Cancellation: safe — the resets continue.
        """
        await self._end_links(reset=True)

    def half_close(self, direction: Direction = Direction.TO_CLIENT) -> None:
        """End one direction of all connections. Later bytes in that direction are lost."""
        for link in self._links:
            for way in self._ways if direction is Direction.BOTH else (direction,):
                link.end(way)

    async def refuse(self) -> None:
        """Reset all connections, and new ones immediately, until `heal()`.

        Cancellation: safe — the resets continue.
        """
        self.is_refusing = True
        await self.reset()

    async def strike(self, fault: Fault) -> None:
        """Cause one fault, and wait for its end.

        Cancellation: safe — lasting faults end.
        """
        match fault.kind:
            case FaultKind.CUT:
                await self.cut()
            case FaultKind.RESET:
                await self.reset()
            case FaultKind.HALF_CLOSE:
                self.half_close(fault.direction)
            case FaultKind.CUT_AFTER:
                self.cut_after(fault.byte_count, fault.direction)
            case FaultKind.STALL:
                self.stall(fault.direction)
            case FaultKind.TRICKLE:
                self.trickle(1, fault.direction)
            case FaultKind.DELAY:
                self.delay(fault.seconds / 4, fault.direction)
            case FaultKind.REFUSE:
                await self.refuse()
        if fault.kind in LASTING:
            try:
                await asyncio.sleep(fault.seconds)
            finally:
                self.heal()

    async def suffer(self, faults: Faults, rng: random.Random) -> None:
        """Cause random faults, one after the other, until cancelled.

        Args:
            faults: Distribution of the faults.
            rng: Source of randomness: a `random.Random(seed)` repeats the same faults.

        Cancellation: safe — lasting faults end.
        """
        try:
            for fault in faults.draw(rng):
                await asyncio.sleep(fault.calm_seconds)
                await self.strike(fault)
        finally:
            self.heal()

    async def start(self) -> None:
        """Listen. After `aclose()`, the proxy listens on the same port again.

        Raises:
            OSError: The port is in use.

        Cancellation: safe — never suspends.
        """
        assert self._listener is None, "the proxy is started already"
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._listener = listener = socket.create_server((self._host, self._port), family=family)
        listener.setblocking(False)  # noqa: FBT003
        self._port = listener.getsockname()[1]
        # Race: closing a server of asyncio drops connections that it's accepting.
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def aclose(self) -> None:
        """Stop listening, and reset all connections. Idempotent.

        Cancellation: safe — the resets continue; call again to await them.
        """
        listener, self._listener = self._listener, None
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        await self._end_links(reset=True)

    def _chosen(self, direction: Direction) -> tuple[_Way, ...]:
        if direction is Direction.BOTH:
            return tuple(self._ways.values())
        return (self._ways[direction],)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # The client is gone.
            accepted, _ = listener.accept()
            self.accepted += 1
            if self.is_refusing or self.upstream is None:
                _close(accepted, reset=True)
                return
            accepted.setblocking(False)  # noqa: FBT003
            link = _Link(accepted)
            self._links.add(link)
            link.task.start(
                self._serve(link, self.upstream),
                "gazette fault proxy",
                on_end=lambda: self._links.discard(link),
            )

    async def _serve(self, link: _Link, upstream: str) -> None:
        """Forward bytes until both sides have ended, or either side breaks."""
        reset = True
        try:
            accepted, link.accepted = link.accepted, None
            link.client = client = await asyncio.open_connection(sock=accepted)
            async with asyncio.timeout(_CONNECT_SECONDS):
                link.server = server = await _connect(upstream)
            for way, (_, writer) in ((Direction.TO_CLIENT, client), (Direction.TO_SERVER, server)):
                # The proxy may lose only bytes that are in this process.
                writer.transport.set_write_buffer_limits(0)
                if way in link.ended:
                    writer.write_eof()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(link, Direction.TO_SERVER, client, server))
                group.create_task(self._pass_on(link, Direction.TO_CLIENT, server, client))
            reset = False
        except* OSError:
            pass  # One side broke, thus the other is reset.
        finally:
            link.abort(reset=reset)

    async def _pass_on(
        self, link: _Link, direction: Direction, source: _Streams, target: _Streams
    ) -> None:
        way = self._ways[direction]
        while received := await source[0].read(_PIECE_BYTES):
            await way.hold_up()
            rest = memoryview(received)
            while rest and direction not in link.ended:
                size = min(way.allowance(), len(rest))
                target[1].write(rest[:size])
                await target[1].drain()
                way.passed_bytes += size
                if way.bytes_left is not None:
                    way.bytes_left -= size
                    if not way.bytes_left:
                        way.bytes_left = None
                        self._break_links(reset=False)
                rest = rest[size:]
                await asyncio.sleep(0)  # Whoever trickles lets others have their turn.
                await way.be_passable()
        link.end(direction)

    def _break_links(self, *, reset: bool) -> tuple[_Link, ...]:
        """End all connections, and return them."""
        links = tuple(self._links)
        for link in links:
            link.abort(reset=reset)
            link.task.cancel()
        return links

    async def _end_links(self, *, reset: bool) -> None:
        for link in self._break_links(reset=reset):
            await link.task.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    def __del__(self) -> None:
        if getattr(self, "_listener", None) is not None:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        where = f"{self._host}:{self._port}" if self._listener is not None else "stopped"
        return f"<FaultProxy {where} to {self.upstream}, {len(self._links)} connections>"


async def _connect(endpoint: str) -> _Streams:
    parsed = parse_endpoint(endpoint)
    if parsed.scheme == "unix":
        return await asyncio.open_unix_connection(parsed.path)
    host, _, port = parsed.grpc_target.rpartition(":")
    return await asyncio.open_connection(host.strip("[]"), int(port))


def _abort(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    """Close a connection without sending buffered bytes."""
    if reset and not writer.transport.is_closing():
        _linger_not(writer.get_extra_info("socket"))
    writer.transport.abort()


def _close(sock: socket.socket, *, reset: bool) -> None:
    if reset:
        _linger_not(sock)
    sock.close()


def _linger_not(sock: socket.socket) -> None:
    # Closing a socket with a linger time of zero resets its connection.
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
