"""The Shard service of a gRPC server: delegates, deadlines of tokens, and codes of errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.consumer.handlers.changes import shard_apply, shard_unassign
from gazette_aio.consumer.handlers.reads import shard_get_hints, shard_list, shard_stat
from gazette_aio.protocol import consumer as pc  # noqa: TC001 - The fields' types.
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
    from gazette_aio.consumer.service.service import Service
    from gazette_aio.serving.calls import CallCounts, Send, Serve

Request = TypeVar("Request")
Response = TypeVar("Response")

Handler: TypeAlias = Callable[[pb.Claims, "Service", Request], Awaitable[Response]]


@dataclass(slots=True)
class ShardAPI:
    """Functions that answer the RPCs of the Shard service. Each may be replaced.

    They're called with the verified claims of the caller, the service, and the request. An
    RpcError, or another exception of this package, ends the RPC.
    """

    stat: Handler[pc.StatRequest, pc.StatResponse] = shard_stat
    list: Handler[pc.ListRequest, pc.ListResponse] = shard_list
    apply: Handler[pc.ApplyRequest, pc.ApplyResponse] = shard_apply
    get_hints: Handler[pc.GetHintsRequest, pc.GetHintsResponse] = shard_get_hints
    unassign: Handler[pc.UnassignRequest, pc.UnassignResponse] = shard_unassign


def shard_service(
    service: Service,
    *,
    verifier: pb.Verifier,
    counts: CallCounts,
    clock: Callable[[], float] = time.time,
) -> RpcService:
    """Return the Shard service, whose `handlers()` are to be added to a server.

    Args:
        service: The member, whose `shard_api` has the functions that answer.
        verifier: Verifies the authorization of calls.
        counts: Counts of calls.
        clock: Source of Unix seconds.
    """

    def serve(name: str) -> Serve:
        async def call(claims: pb.Claims, request: Any, _messages: object, send: Send) -> None:
            handler = getattr(service.shard_api, name)
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
