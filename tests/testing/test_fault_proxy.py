"""What the proxy does to connections, as their two ends see it."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import gazette_aio.protocol as pb
from gazette_aio.testing import Direction, Fault, FaultKind, FaultProxy, Faults, no_leaks
from tests.waiting import eventually

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Peers:
    """Both ends of connections through a proxy."""

    def __init__(self) -> None:
        self.proxy = FaultProxy()
        self.arrived: asyncio.Queue[Streams] = asyncio.Queue()
        self.opened: list[Streams] = []

    async def dial(self) -> Streams:
        host, _, port = self.proxy.endpoint.removeprefix("http://").rpartition(":")
        client = await asyncio.open_connection(host, int(port))
        self.opened.append(client)
        return client

    async def link(self) -> tuple[Streams, Streams]:
        """Return a connection: the client's end and the server's."""
        client = await self.dial()
        server = await self.arrived.get()
        client[1].write(b"!")
        assert await server[0].readexactly(1) == b"!"
        return client, server

    async def round_trips_beside(self) -> None:
        """Pass bytes to and fro on a connection of the same event loop, but not of the proxy.

        What the proxy lets pass, and has received before, passes meanwhile.
        """
        port = str(self.proxy.upstream).rpartition(":")[2]
        client = await asyncio.open_connection("127.0.0.1", int(port))
        self.opened.append(client)
        server = await self.arrived.get()
        for _ in range(10):
            for (_, writer), (reader, _) in ((client, server), (server, client)):
                writer.write(b"!")
                assert await reader.readexactly(1) == b"!"

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened.append((reader, writer))
        self.arrived.put_nowait((reader, writer))


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    async with no_leaks():
        peers = Peers()
        server = await asyncio.start_server(peers.accept, "127.0.0.1", 0)
        async with peers.proxy:
            peers.proxy.upstream = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield peers
        for _, writer in peers.opened:
            writer.close()
        server.close()


async def silent(peers: Peers, reader: asyncio.StreamReader) -> bool:
    """Return whether nothing arrives while bytes beside the proxy do: not even an end."""
    read = asyncio.ensure_future(reader.read(1))
    await peers.round_trips_beside()
    has_ended = read.done()
    read.cancel()
    await asyncio.wait((read,))
    return not has_ended


async def test_it_passes_on_both_ways_and_the_end(peers: Peers) -> None:
    client, server = await peers.link()
    client[1].write(b"ping")
    assert await server[0].readexactly(4) == b"ping"
    server[1].write(b"pong!")
    assert await client[0].readexactly(5) == b"pong!"
    assert peers.proxy.passed_bytes() == 10
    assert peers.proxy.passed_bytes(Direction.TO_CLIENT) == 5
    assert repr(peers.proxy).endswith(f"to {peers.proxy.upstream}, 1 connections>")

    # An end of one side is passed on as such, and the other side goes on.
    client[1].write_eof()
    assert await server[0].read() == b""
    server[1].write(b"more")
    assert await client[0].readexactly(4) == b"more"
    server[1].close()
    assert await client[0].read() == b""
    await eventually(lambda: peers.proxy.connections == 0)


async def test_a_stall_delays_and_loses_nothing(peers: Peers) -> None:
    client, server = await peers.link()
    peers.proxy.stall(Direction.TO_SERVER)
    client[1].write(b"held up")
    assert await silent(peers, server[0])
    server[1].write(b"passes")
    assert await client[0].readexactly(6) == b"passes"
    peers.proxy.resume(Direction.TO_SERVER)
    assert await server[0].readexactly(7) == b"held up"


async def test_resets(peers: Peers) -> None:
    client, server = await peers.link()
    await peers.proxy.reset()
    assert peers.proxy.connections == 0
    for reader, _ in (client, server):
        with pytest.raises(ConnectionResetError):
            await reader.read(1)


async def test_cuts(peers: Peers) -> None:
    client, server = await peers.link()
    await peers.proxy.cut()
    assert await client[0].read(1) == b""
    assert await server[0].read(1) == b""


async def test_a_reset_of_a_peer_is_passed_on(peers: Peers) -> None:
    client, server = await peers.link()
    sock = server[1].get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server[1].transport.abort()
    with pytest.raises(ConnectionResetError):
        await client[0].read(1)


async def test_half_closes(peers: Peers) -> None:
    client, server = await peers.link()
    peers.proxy.half_close(Direction.TO_CLIENT)
    assert await client[0].read() == b""
    server[1].write(b"lost")
    client[1].write(b"arrives")
    assert await server[0].readexactly(7) == b"arrives"
    peers.proxy.half_close(Direction.BOTH)
    assert await server[0].read() == b""


async def test_half_closes_ahead_of_the_server(peers: Peers) -> None:
    client = await peers.dial()
    await eventually(lambda: peers.proxy.connections > 0)
    peers.proxy.half_close(Direction.BOTH)
    assert await client[0].read() == b""
    server = await peers.arrived.get()
    assert await server[0].read() == b""


async def test_it_trickles(peers: Peers) -> None:
    client, server = await peers.link()
    peers.proxy.trickle(1)
    client[1].write(bytes(range(50)))
    sizes: list[int] = []
    received = b""
    while len(received) < 50:
        piece = await server[0].read(100)
        sizes.append(len(piece))
        received += piece
    assert received == bytes(range(50))
    assert len(sizes) > 10
    peers.proxy.trickle(1, Direction.TO_CLIENT)
    peers.proxy.heal()
    server[1].write(b"at once")
    assert await client[0].readexactly(7) == b"at once"


async def test_it_delays(peers: Peers) -> None:
    client, server = await peers.link()
    peers.proxy.delay(0.05)
    begin = asyncio.get_running_loop().time()
    client[1].write(b"late")
    assert await server[0].readexactly(4) == b"late"
    assert asyncio.get_running_loop().time() - begin > 0.045
    peers.proxy.delay(60.0)
    client[1].write(b"later")
    assert await silent(peers, server[0])
    peers.proxy.resume()
    assert await server[0].readexactly(5) == b"later"


@pytest.mark.parametrize("count", [1, 7, 100, 99_999])
async def test_it_cuts_after_so_many_bytes(peers: Peers, count: int) -> None:
    client, server = await peers.link()
    peers.proxy.cut_after(count, Direction.TO_SERVER)
    peers.proxy.cut_after(count + 1, Direction.TO_CLIENT)
    client[1].write(bytes(100_000))
    received = 0
    try:
        while piece := await server[0].read(1 << 16):
            received += len(piece)
    except ConnectionResetError:
        pass  # As there was more to be passed on.
    assert received == count
    # It strikes once, unless it's called off.
    peers.proxy.resume()
    client, server = await peers.link()
    client[1].write(bytes(1000))
    assert await server[0].readexactly(1000) == bytes(1000)


async def test_it_refuses(peers: Peers) -> None:
    await peers.link()
    await peers.proxy.refuse()
    assert peers.proxy.connections == 0
    with pytest.raises(ConnectionResetError):
        await (await peers.dial())[0].read(1)
    peers.proxy.heal()
    client, server = await peers.link()
    client[1].write(b"again")
    assert await server[0].readexactly(5) == b"again"
    upstream, peers.proxy.upstream = peers.proxy.upstream, None
    with pytest.raises(ConnectionResetError):
        await (await peers.dial())[0].read(1)
    peers.proxy.upstream = upstream


async def test_nobody_is_upstream(peers: Peers) -> None:
    peers.proxy.upstream = "http://127.0.0.1:1"
    with pytest.raises(ConnectionResetError):
        await (await peers.dial())[0].read(1)
    assert peers.proxy.accepted == 1


async def test_it_starts_again_at_its_port(peers: Peers) -> None:
    endpoint = peers.proxy.endpoint
    await peers.proxy.aclose()
    await peers.proxy.aclose()
    with pytest.raises(ConnectionRefusedError):
        await peers.dial()
    await peers.proxy.start()
    assert peers.proxy.endpoint == endpoint
    await peers.link()


async def test_upstream_is_a_socket_of_unix(tmp_path: Path) -> None:
    async with no_leaks():
        peers = Peers()
        server = await asyncio.start_unix_server(peers.accept, tmp_path / "socket")
        async with FaultProxy(f"unix://localhost{tmp_path}/socket") as peers.proxy:
            assert peers.proxy.endpoint.startswith("http://127.0.0.1:")
            client, (reader, _) = await peers.link()
            client[1].write(b"content")
            assert await reader.readexactly(7) == b"content"
            await peers.proxy.reset()
            assert await reader.read(1) == b""
        for _, writer in peers.opened:
            writer.close()
        server.close()


async def test_misuse() -> None:
    with pytest.raises(pb.ValidationError):
        FaultProxy("nonsense")
    proxy = FaultProxy("https://localhost:1")
    with pytest.raises(RuntimeError, match="isn't started"):
        _ = proxy.endpoint
    await proxy.start()
    assert proxy.endpoint.startswith("https://127.0.0.1:")
    with pytest.warns(ResourceWarning, match="never closed"):
        proxy.__del__()
    await proxy.aclose()


def test_a_seed_repeats_a_plan() -> None:
    def plan(seed: int) -> list[object]:
        faults = Faults(calm_seconds=(1, 2), fault_seconds=(3, 4), most_bytes=1000)
        return list(itertools.islice(faults.draw(random.Random(seed)), 200))

    assert plan(1) == plan(1) != plan(2)
    drawn = list(itertools.islice(Faults().draw(random.Random(3)), 200))
    assert {fault.kind for fault in drawn} == set(FaultKind)
    assert {fault.direction for fault in drawn} == set(Direction)
    assert all(0.05 <= fault.calm_seconds <= 0.5 for fault in drawn)
    assert all(1 <= fault.byte_count <= 100_000 for fault in drawn)
    assert str(drawn[0]) == f"{drawn[0].kind.value} ({drawn[0].direction.value})"
    only = Faults(kinds=[FaultKind.STALL]).draw(random.Random(3))
    assert {next(only).kind for _ in range(9)} == {FaultKind.STALL}


async def test_it_suffers_all_kinds_and_recovers(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def counted(fault: Fault) -> None:
        await strike(fault)
        struck.append(fault)

    strike, struck = peers.proxy.strike, list[Fault]()
    monkeypatch.setattr(peers.proxy, "strike", counted)
    kinds: list[FaultKind] = []
    for kind in FaultKind:
        struck.clear()
        faults = Faults(kinds=[kind], calm_seconds=(0, 0), fault_seconds=(0, 0.001))
        suffering = asyncio.create_task(peers.proxy.suffer(faults, random.Random(1)))
        await eventually(lambda: len(struck) >= 3)
        suffering.cancel()
        await asyncio.wait((suffering,))
        assert suffering.cancelled()
        await peers.proxy.cut()
        while not peers.arrived.empty():
            peers.arrived.get_nowait()
        client, server = await peers.link()
        client[1].write(b"well")
        assert await server[0].readexactly(4) == b"well"
        kinds.append(kind)
    assert len(kinds) == 8
