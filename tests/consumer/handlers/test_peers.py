"""Connections to other members: they end after their members, and after their calls."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

import gazette_aio.protocol as pb
from gazette_aio.consumer.allocator.model import MemberID
from gazette_aio.consumer.handlers import Peers
from gazette_aio.consumer.keyspace.operations import Delete, Put
from gazette_aio.protocol.consumer import ConsumerSpec
from tests.cancellation import close_at_every_await
from tests.consumer.shards.group import KEYS, Group
from tests.waiting import eventually, turns

OTHER, THIRD = MemberID("other", "consumer"), MemberID("third", "consumer")
AUTH = pb.NoopAuth()


class Echo:
    """A server whose calls wait until the test lets them end."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.may_end = asyncio.Event()
        self.endpoint = ""

    async def answer(self, request: bytes, _context: Any) -> bytes:
        self.called.set()
        await self.may_end.wait()
        return request


@asynccontextmanager
async def serving():
    echo, server = Echo(), grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(echo.answer)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("Words", {"Echo": handler})]
    )
    echo.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield echo
    finally:
        await server.stop(None)


def announcement(member: MemberID, endpoint: str) -> Put:
    spec = ConsumerSpec(shard_limit=1)
    spec.process_spec.endpoint = endpoint
    spec.process_spec.id.zone, spec.process_spec.id.suffix = member
    return Put(KEYS.member(*member), spec.SerializeToString())


def call(peers: Peers, endpoint: str) -> Any:
    method: Any = peers.channel(endpoint).unary_unary("/Words/Echo")
    return method(b"hello")


@asynccontextmanager
async def group_of(client, peers):
    group = Group(client)
    group.key_space.observers.append(peers.observe)
    async with group, peers:
        yield group


async def test_a_client_ends_after_its_member_and_its_calls(client):
    peers = Peers(AUTH, linger_seconds=0)
    async with serving() as echo, group_of(client, peers) as group:
        await group.write(announcement(OTHER, echo.endpoint))
        calling = call(peers, echo.endpoint)
        await echo.called.wait()
        await group.write(Delete(KEYS.member(*OTHER)))
        await turns()
        assert not calling.done()
        echo.may_end.set()
        assert await calling == b"hello"
        await eventually(lambda: peers.open_clients == 0)
        # The next member of this endpoint gets another connection.
        await group.write(announcement(THIRD, echo.endpoint))
        assert await call(peers, echo.endpoint) == b"hello"
        assert peers.open_clients == 1


async def test_a_client_stays_while_any_member_has_the_endpoint(client):
    peers = Peers(AUTH, linger_seconds=0)
    async with serving() as echo, group_of(client, peers) as group:
        await group.write(announcement(OTHER, echo.endpoint), announcement(THIRD, echo.endpoint))
        channel = peers.channel(echo.endpoint)
        await group.write(Delete(KEYS.member(*OTHER)))
        assert peers.channel(echo.endpoint) is channel
        # A member that moves leaves its endpoint.
        await group.write(announcement(THIRD, "http://127.0.0.1:1"))
        await eventually(lambda: peers.open_clients == 0)


async def test_a_channel_may_be_used_for_a_while_after_its_member(client):
    peers = Peers(AUTH)
    async with serving() as echo, group_of(client, peers) as group:
        echo.may_end.set()
        await group.write(announcement(OTHER, echo.endpoint))
        method: Any = peers.channel(echo.endpoint).unary_unary("/Words/Echo")
        await group.write(Delete(KEYS.member(*OTHER)))
        await turns()
        assert await method(b"late") == b"late"


async def test_a_client_of_an_endpoint_that_is_no_members_ends_too(client):
    peers = Peers(AUTH, linger_seconds=0)
    async with serving() as echo, group_of(client, peers):
        echo.may_end.set()
        assert await call(peers, echo.endpoint) == b"hello"
        await eventually(lambda: peers.open_clients == 0)


async def test_closing_cancelled_at_each_await(client):
    async with serving() as echo, Group(client) as group:

        async def opened() -> Peers:
            peers = Peers(AUTH)
            group.key_space.observers.append(peers.observe)
            await group.write(announcement(OTHER, echo.endpoint))
            echo.called.clear()
            calls.append(asyncio.ensure_future(_ended(call(peers, echo.endpoint))))
            await echo.called.wait()
            await group.write(Delete(KEYS.member(*OTHER)))
            peers.channel("http://127.0.0.1:1")
            group.key_space.observers.remove(peers.observe)
            return peers

        calls: list[asyncio.Future[None]] = []
        assert await close_at_every_await(opened) >= 1
        peers = await opened()
        await peers.aclose()
        with pytest.raises(RuntimeError, match="are closed"):
            peers.channel(echo.endpoint)
        await asyncio.wait(calls)


async def _ended(calling: Any) -> None:
    await asyncio.wait((asyncio.ensure_future(calling.code()),))
