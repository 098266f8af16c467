"""The Shard service of a gRPC server: delegates, deadlines of tokens, and codes of errors."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import gazette_aio.protocol as pb
from gazette_aio.protocol.service import (
    SHARD_APPLY,
    SHARD_GET_HINTS,
    SHARD_LIST,
    SHARD_METHODS,
    SHARD_SERVICE_NAME,
    SHARD_STAT,
    SHARD_UNASSIGN,
)
from gazette_aio.serving.calls import Service as RpcService
from gazette_aio.serving.calls import verified_claims
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_aio.consumer.handlers.delegates import ShardAPI
    from gazette_aio.consumer.service.service import Service
    from gazette_aio.serving.calls import CallCounts, Send, Serve


def shard_service(
    api: ShardAPI,
    service: Service,
    *,
    verifier: pb.Verifier,
    counts: CallCounts,
    clock: Callable[[], float] = time.time,
) -> RpcService:
    """Return the Shard service, whose `handlers()` are to be added to a server.

    Args:
        api: Functions that answer. They're looked up at each call.
        service: What they're called with.
        verifier: Verifies the authorization of calls.
        counts: Counts of calls.
        clock: Source of Unix seconds.
    """

    def serve(name: str) -> Serve:
        async def call(claims: pb.Claims, request: Any, _messages: object, send: Send) -> None:
            handler = getattr(api, name)
            await send(await _answer(handler(claims, service, request), claims, clock()))

        return call

    def authorize(header: Callable[[], str | None], capability: pb.Capability) -> pb.Claims:
        return verified_claims(verifier, header(), capability, clock())

    by_path = {
        SHARD_STAT: "stat",
        SHARD_LIST: "list",
        SHARD_APPLY: "apply",
        SHARD_GET_HINTS: "get_hints",
        SHARD_UNASSIGN: "unassign",
    }
    return RpcService(
        SHARD_SERVICE_NAME,
        SHARD_METHODS,
        {path: serve(name) for path, name in by_path.items()},
        authorize=authorize,
        counts=counts,
    )


async def _answer(answer: Awaitable[Any], claims: pb.Claims, now: float) -> Any:
    """Await an answer, at most until the caller's token expires.

    Wire: other implementations answer with code UNKNOWN and the bare text, whatever failed.
    """
    remaining = None if claims.expires_at is None else max(claims.expires_at - now, 0)
    bound = asyncio.timeout(remaining)
    try:
        async with bound:
            return await answer
    except TimeoutError as error:
        if not bound.expired():
            raise  # Of a user's function.
        raise RpcError("context deadline exceeded", "DEADLINE_EXCEEDED") from error
    except pb.GazetteError as error:
        raise RpcError(str(error)) from error
