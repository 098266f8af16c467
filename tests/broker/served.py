"""Requests to the services of a broker, without a front end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import gazette_aio.protocol as pb
from gazette_aio.broker.core import BrokerCore
from gazette_aio.broker.service import append, apply, fragments, list, read  # noqa: A004
from gazette_aio.serving.calls import Send


async def serve_append(
    core: BrokerCore, claims: pb.Claims, messages: AsyncIterator[Any]
) -> pb.AppendResponse:
    first = await anext(messages, None)
    return await _only(append.serve_append, core, claims, first, messages)


async def serve_apply(
    core: BrokerCore, claims: pb.Claims, request: pb.ApplyRequest
) -> pb.ApplyResponse:
    return await _only(apply.serve_apply, core, claims, request, None)


async def serve_fragments(
    core: BrokerCore, claims: pb.Claims, request: pb.FragmentsRequest
) -> pb.FragmentsResponse:
    return await _only(fragments.serve_fragments, core, claims, request, None)


async def serve_list(
    core: BrokerCore, claims: pb.Claims, request: pb.ListRequest, send: Send
) -> None:
    await list.serve_list(core, claims, request, None, send)


async def serve_read(
    core: BrokerCore, claims: pb.Claims, request: pb.ReadRequest, send: Send
) -> None:
    await read.serve_read(core, claims, request, None, send)


async def _only(serve: Any, *arguments: Any) -> Any:
    responses: Any = []

    async def send(response: Any) -> None:
        responses.append(response)

    await serve(*arguments, send)
    (response,) = responses
    return response
