"""Calls of a service on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import grpc
import grpc.aio
import pytest

import gazette_aio.protocol as pb
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol.service import SHARD_METHODS, SHARD_SERVICE_NAME, SHARD_STAT
from gazette_aio.serving.calls import CallCounts, Send, Service, verified_claims
from gazette_aio.serving.drain import Drain
from gazette_aio.serving.rpc_error import RpcError
from gazette_aio.serving.server import GrpcServer

KEYS = pb.KeyedAuth("c2VjcmV0")
NOW = 1000.0
STAT = pc.StatRequest(shard="a/shard")


class Served:
    """A server of the Shard service, whose methods all return `response` or raise `error`."""

    def __init__(self) -> None:
        self.response: Any = pc.StatResponse()
        self.error: Exception | None = None
        self.calls: list[tuple[pb.Claims, Any]] = []
        self.counts = CallCounts()
        self.channel: grpc.aio.Channel | None = None

    async def serve(self, claims: pb.Claims, request: Any, _messages: object, send: Send) -> None:
        self.calls.append((claims, request))
        if self.error is not None:
            raise self.error
        await send(self.response)

    async def call(self, message: bytes, capability: pb.Capability | None) -> Any:
        """Call Stat with a token of this capability, or without one."""
        assert self.channel is not None
        metadata: list[tuple[str, str]] = []
        if capability is not None:
            token = KEYS.sign(pb.Claims(capability), timedelta(minutes=1), NOW)
            metadata.append(("authorization", f"Bearer {token}"))
        method: Any = self.channel.unary_unary(SHARD_STAT)
        return pc.StatResponse.FromString(await method(message, metadata=metadata))

    async def failure(
        self, message: bytes, capability: pb.Capability | None
    ) -> tuple[grpc.StatusCode, str]:
        """Return code and text by which such a call ends."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.call(message, capability)
        return caught.value.code(), caught.value.details() or ""


@asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    served = Served()
    drain = Drain()

    def authorize(header: Callable[[], str | None], capability: pb.Capability) -> pb.Claims:
        return verified_claims(KEYS, header(), capability, NOW)

    service = Service(
        SHARD_SERVICE_NAME,
        SHARD_METHODS,
        dict.fromkeys(SHARD_METHODS, served.serve),
        authorize=authorize,
        counts=served.counts,
    )
    server = GrpcServer((service.handlers(drain),), drain)
    port = server.bind("127.0.0.1", 0)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as served.channel:
            yield served
    finally:
        await server.stop(0.0)


async def test_calls_are_served_and_counted():
    async with serving() as served:
        served.response = pc.StatResponse(publish_at={"a/journal": 5})
        message = STAT.SerializeToString()
        assert await served.call(message, pb.Capability.READ) == served.response
        ((claims, request),) = served.calls
        assert claims.capability == pb.Capability.READ
        assert claims.expires_at == NOW + 60
        assert request == STAT
        served.response = pc.StatResponse(status=pc.Status.NO_SHARD_PRIMARY)
        await served.call(message, pb.Capability.READ)
        assert served.counts.completed == {("Stat", "ok"): 1, ("Stat", "NO_SHARD_PRIMARY"): 1}
        assert served.counts.started == {"Stat": 2}


async def test_calls_are_authorized_before_their_requests_are_looked_at():
    async with serving() as served:
        refused = grpc.StatusCode.UNAUTHENTICATED
        assert await served.failure(b"\xff", None) == (
            refused,
            "missing or empty Authorization token",
        )
        assert await served.failure(b"\xff", pb.Capability.APPLY) == (
            refused,
            "authorization is missing required READ capability",
        )
        code, text = await served.failure(b"\xff", pb.Capability.READ)
        assert code is grpc.StatusCode.INTERNAL
        assert text.startswith("failed to unmarshal the request")
        assert served.calls == []


async def test_failures_end_calls_by_their_codes():
    async with serving() as served:
        served.error = RpcError("a text")
        failure = await served.failure(STAT.SerializeToString(), pb.Capability.READ)
        assert failure == (grpc.StatusCode.UNKNOWN, "a text")
        assert served.counts.completed == {("Stat", "<error>"): 1}
