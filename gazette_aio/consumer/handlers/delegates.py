"""Delegates of the Shard service: functions that a user's own can replace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.consumer.handlers.apply import shard_apply
from gazette_aio.consumer.handlers.hints import shard_get_hints
from gazette_aio.consumer.handlers.listing import shard_list
from gazette_aio.consumer.handlers.stat import shard_stat
from gazette_aio.consumer.handlers.unassign import shard_unassign
from gazette_aio.protocol import consumer as pc  # noqa: TC001 - The fields' types.

if TYPE_CHECKING:
    from gazette_aio.consumer.service.service import Service

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
