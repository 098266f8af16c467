"""Start of a server, and its cancellation."""

from __future__ import annotations

import gc

import grpc
import grpc.aio
import pytest

from gazette_aio.serving.drain import Drain
from gazette_aio.serving.server import GrpcServer
from gazette_aio.testing import no_leaks
from tests.cancellation import cancel_at


async def test_a_server_whose_start_is_cancelled_answers_until_it_is_stopped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with no_leaks():
        server = GrpcServer((), Drain())
        port = server.bind("127.0.0.1", 0)
        assert await cancel_at(server.start(), 0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/a/Method")(b"", timeout=20)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        await server.stop(0)
    gc.collect()
    assert "invalid state" not in caplog.text
