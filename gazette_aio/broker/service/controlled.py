"""The services as front ends call them: behind the rules of the broker's control.

A request of a kind for which there are no rules is handed on as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from google.protobuf.message import Message

import gazette_aio.protocol as pb
from gazette_aio.broker.control.rules import Cut, CutCounter, completed
from gazette_aio.broker.host.rpc_error import RpcError
from gazette_aio.broker.service import append, apply, fragments, health, list, read, replicate  # noqa: A004
from gazette_aio.broker.service.read import ContentChunk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from gazette_aio.broker.control.rules import Kind
    from gazette_aio.broker.core import BrokerCore
    from gazette_aio.broker.service.append import AppendMessage

M = TypeVar("M", bound=Message)


def serve_list(
    core: BrokerCore, claims: pb.Claims, request: pb.ListRequest, send: list.Send
) -> Awaitable[None]:
    """Serve List; see `service.list`."""
    if "list" not in core.control.kinds:
        return list.serve_list(core, claims, request, send)
    return _list(core, claims, request, send)


def serve_apply(
    core: BrokerCore, claims: pb.Claims, request: pb.ApplyRequest
) -> Awaitable[pb.ApplyResponse]:
    """Serve Apply; see `service.apply`."""
    if "apply" not in core.control.kinds:
        return apply.serve_apply(core, claims, request)
    return _unary(core, "apply", request, lambda: apply.serve_apply(core, claims, request))


def serve_read(
    core: BrokerCore, claims: pb.Claims, request: pb.ReadRequest, send: read.Send
) -> Awaitable[None]:
    """Serve Read; see `service.read`."""
    if "read" not in core.control.kinds:
        return read.serve_read(core, claims, request, send)
    return _read(core, claims, request, send)


def serve_append(
    core: BrokerCore, claims: pb.Claims, messages: AsyncIterator[AppendMessage]
) -> Awaitable[pb.AppendResponse]:
    """Serve Append; see `service.append`."""
    if "append" not in core.control.kinds:
        return append.serve_append(core, claims, messages)
    return _append(core, claims, messages)


def serve_fragments(
    core: BrokerCore, claims: pb.Claims, request: pb.FragmentsRequest
) -> Awaitable[pb.FragmentsResponse]:
    """Serve ListFragments; see `service.fragments`."""
    if "list_fragments" not in core.control.kinds:
        return fragments.serve_fragments(core, claims, request)
    return _unary(
        core,
        "list_fragments",
        request,
        lambda: fragments.serve_fragments(core, claims, request),
    )


def serve_health(
    core: BrokerCore, request: pb.FragmentStoreHealthRequest
) -> Awaitable[pb.FragmentStoreHealthResponse]:
    """Serve FragmentStoreHealth; see `service.health`."""
    if "fragment_store_health" not in core.control.kinds:
        return health.serve_health(core, request)
    return _unary(
        core, "fragment_store_health", request, lambda: health.serve_health(core, request)
    )


def serve_replicate(
    core: BrokerCore, claims: pb.Claims, request: pb.ReplicateRequest | None
) -> Awaitable[pb.ReplicateResponse]:
    """Serve Replicate; see `service.replicate`."""
    if request is None or "replicate" not in core.control.kinds:
        return replicate.serve_replicate(core, claims, request)
    return _unary(
        core, "replicate", request, lambda: replicate.serve_replicate(core, claims, request)
    )


async def _unary(
    core: BrokerCore, kind: Kind, request: Message, serve: Callable[[], Awaitable[M]]
) -> M:
    verdict = await core.control.admit(kind, request)
    if verdict.responses is None:
        return await serve()
    return cast("M", _completed(core, kind, verdict.responses)[0])


async def _list(
    core: BrokerCore, claims: pb.Claims, request: pb.ListRequest, send: list.Send
) -> None:
    verdict = await core.control.admit("list", request)
    stream = _CutStream(verdict.cut)

    async def counted(response: pb.ListResponse) -> None:
        await send(response)
        stream.sent(0)

    async def run() -> None:
        if verdict.responses is None:
            await list.serve_list(core, claims, request, counted)
        for response in _completed(core, "list", verdict.responses or ()):
            await counted(response)

    await stream.run(run)


async def _read(
    core: BrokerCore, claims: pb.Claims, request: pb.ReadRequest, send: read.Send
) -> None:
    verdict = await core.control.admit("read", request)
    stream = _CutStream(verdict.cut)

    async def counted(response: pb.ReadResponse | ContentChunk) -> None:
        length = 0
        if isinstance(response, ContentChunk):
            content = response.content
            length = stream.room(len(content))
            if length < len(content):
                response = ContentChunk(response.offset, content[:length])
        await send(response)
        stream.sent(length)

    async def run() -> None:
        if verdict.responses is None:
            await read.serve_read(core, claims, request, counted)
        for response in _completed(core, "read", verdict.responses or ()):
            # Front ends take content in a form of its own.
            is_content = bool(response.content)
            await counted(
                ContentChunk(response.offset, response.content) if is_content else response
            )

    await stream.run(run)


async def _append(
    core: BrokerCore, claims: pb.Claims, messages: AsyncIterator[AppendMessage]
) -> pb.AppendResponse:
    first = await anext(messages, None)
    if first is None:
        return await append.serve_append(core, claims, messages)
    if isinstance(first, pb.AppendRequest):
        request = first
    else:
        request = pb.AppendRequest(content=bytes(first))
    try:
        verdict = await core.control.admit("append", request)
    except Exception:  # Predicates of rules may raise anything.
        if not core.control.is_stopping:
            await _drain(messages)
        raise
    if verdict.responses is not None:
        await _drain(messages)
        return cast("pb.AppendResponse", _completed(core, "append", verdict.responses)[0])
    response = await append.serve_append(
        core, claims, _AppendMessages(first, messages, verdict.cut)
    )
    cut = verdict.cut
    if cut is not None and cut.at == "after_commit" and response.status == pb.Status.OK:
        raise _error(cut)
    return response


async def _drain(messages: AsyncIterator[AppendMessage]) -> None:
    # A client of gRPC whose write fails may not see the answer which it's given early.
    async for _ in messages:
        pass


class _EndOfStreamError(Exception):
    """The stream is to end as if it were complete."""


class _CutStream:
    """Messages which are sent, up to the cut of their stream if there's one."""

    def __init__(self, cut: Cut | None) -> None:
        self._cut = cut
        self._counter = None if cut is None else CutCounter(cut)

    def room(self, length: int) -> int:
        return length if self._counter is None else self._counter.room(length)

    def sent(self, length: int) -> None:
        if self._counter is not None:
            self._counter.count(length)
            self._check()

    async def run(self, serve: Callable[[], Awaitable[None]]) -> None:
        try:
            self._check()
            await serve()
        except _EndOfStreamError:
            pass

    def _check(self) -> None:
        if self._cut is not None and self._counter is not None and self._counter.is_due:
            if self._cut.failure is None:
                raise _EndOfStreamError
            raise _error(self._cut)


class _AppendMessages:
    """Messages of an append whose first one was looked at, up to the cut of its stream."""

    def __init__(
        self, first: AppendMessage, messages: AsyncIterator[AppendMessage], cut: Cut | None
    ) -> None:
        self._first: AppendMessage | None = first
        self._messages = messages
        self._cut = cut
        self._counter = None if cut is None else CutCounter(cut)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AppendMessage:
        cut, counter = self._cut, self._counter
        if cut is not None and counter is not None and counter.is_due:
            raise _error(cut)
        message, self._first = self._first, None
        if message is None:
            try:
                message = await anext(self._messages)
            except StopAsyncIteration:
                if cut is not None and cut.at == "before_commit":
                    raise _error(cut) from None
                raise
        if counter is not None:
            content = message.content if isinstance(message, pb.AppendRequest) else message
            counter.count(len(content))
        return message


def _error(cut: Cut) -> RpcError:
    assert cut.failure is not None
    return RpcError(cut.failure.text, cut.failure.code)


def _completed(core: BrokerCore, kind: Kind, responses: Any) -> Any:
    return completed(kind, responses, core.headers.routed(), core.headers.unrouted())
