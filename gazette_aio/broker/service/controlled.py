"""Services with the rules of the broker's control applied, for front ends."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, cast

from google.protobuf.message import Message

import gazette_aio.protocol as pb
from gazette_aio.broker.control.rules import CutCounter, CutError, completed
from gazette_aio.broker.service import append, apply, fragments, health, list, read, replicate  # noqa: A004
from gazette_aio.broker.service.read import ContentChunk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from gazette_aio.broker.control.rules import RequestKind
    from gazette_aio.broker.core import BrokerCore
    from gazette_aio.broker.service.append import AppendMessage

M = TypeVar("M", bound=Message)
Q = TypeVar("Q", bound=Message | None)
P = ParamSpec("P")
T = TypeVar("T")


def _unary(
    kind: RequestKind, serve: Callable[[BrokerCore, pb.Claims, Q], Awaitable[M]]
) -> Callable[[BrokerCore, pb.Claims, Q], Awaitable[M]]:
    async def interfere(core: BrokerCore, claims: pb.Claims, request: Q) -> M:
        # A stream of Replicate may have ended before its request.
        if request is not None:
            verdict = await core.control.admit(kind, request)
            if verdict.responses is not None:
                return cast("M", _completed(core, kind, verdict.responses)[0])
        return await serve(core, claims, request)

    return _controlled(kind, serve, interfere)


def _controlled(
    kind: RequestKind,
    serve: Callable[Concatenate[BrokerCore, P], Awaitable[T]],
    interfere: Callable[Concatenate[BrokerCore, P], Awaitable[T]],
) -> Callable[Concatenate[BrokerCore, P], Awaitable[T]]:
    """Return a service with the rules of its kind applied. Without rules, nothing is added."""

    def call(core: BrokerCore, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        chosen = interfere if kind in core.control.kinds else serve
        return chosen(core, *args, **kwargs)

    return call


async def _list(
    core: BrokerCore, claims: pb.Claims, request: pb.ListRequest, send: list.Send
) -> None:
    verdict = await core.control.admit("list", request)
    counter = CutCounter(verdict.cut)

    async def counted(response: pb.ListResponse) -> None:
        await send(response)
        counter.count(0)
        counter.check()

    with contextlib.suppress(CutError):
        counter.check()
        if verdict.responses is None:
            await list.serve_list(core, claims, request, counted)
        for response in _completed(core, "list", verdict.responses or ()):
            await counted(response)


async def _read(
    core: BrokerCore, claims: pb.Claims, request: pb.ReadRequest, send: read.Send
) -> None:
    verdict = await core.control.admit("read", request)
    counter = CutCounter(verdict.cut)

    async def counted(response: pb.ReadResponse | ContentChunk) -> None:
        length = 0
        if isinstance(response, ContentChunk):
            length = counter.room(len(response.content))
            response = ContentChunk(response.offset, response.content[:length])
        await send(response)
        counter.count(length)
        counter.check()

    with contextlib.suppress(CutError):
        counter.check()
        if verdict.responses is None:
            await read.serve_read(core, claims, request, counted)
        for response in _completed(core, "read", verdict.responses or ()):
            # Front ends have their own form of content.
            content = response.content
            await counted(ContentChunk(response.offset, content) if content else response)


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
    counter = CutCounter(verdict.cut)
    response = await append.serve_append(core, claims, _CutMessages(first, messages, counter))
    if response.status == pb.Status.OK:
        counter.reach("after_commit")
    return response


async def _drain(messages: AsyncIterator[AppendMessage]) -> None:
    # A gRPC client whose write fails may not see an early answer.
    async for _ in messages:
        pass


class _CutMessages:
    """Messages of an append, beginning with the one that was read, up to the cut of the stream."""

    def __init__(
        self, first: AppendMessage, messages: AsyncIterator[AppendMessage], counter: CutCounter
    ) -> None:
        self._first: AppendMessage | None = first
        self._messages = messages
        self._counter = counter

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AppendMessage:
        self._counter.check()
        message, self._first = self._first, None
        if message is None:
            try:
                message = await anext(self._messages)
            except StopAsyncIteration:
                self._counter.reach("before_commit")
                raise
        content = message.content if isinstance(message, pb.AppendRequest) else message
        self._counter.count(len(content))
        return message


def _completed(core: BrokerCore, kind: RequestKind, responses: Any) -> Any:
    return completed(kind, responses, core.headers.routed(), core.headers.unrouted())


serve_list: Callable[[BrokerCore, pb.Claims, pb.ListRequest, list.Send], Awaitable[None]] = (
    _controlled("list", list.serve_list, _list)
)
serve_apply: Callable[[BrokerCore, pb.Claims, pb.ApplyRequest], Awaitable[pb.ApplyResponse]] = (
    _unary("apply", apply.serve_apply)
)
serve_read: Callable[[BrokerCore, pb.Claims, pb.ReadRequest, read.Send], Awaitable[None]] = (
    _controlled("read", read.serve_read, _read)
)
serve_append: Callable[
    [BrokerCore, pb.Claims, AsyncIterator[AppendMessage]], Awaitable[pb.AppendResponse]
] = _controlled("append", append.serve_append, _append)
serve_fragments: Callable[
    [BrokerCore, pb.Claims, pb.FragmentsRequest], Awaitable[pb.FragmentsResponse]
] = _unary("list_fragments", fragments.serve_fragments)
serve_health: Callable[
    [BrokerCore, pb.Claims, pb.FragmentStoreHealthRequest],
    Awaitable[pb.FragmentStoreHealthResponse],
] = _unary("fragment_store_health", health.serve_health)
serve_replicate: Callable[
    [BrokerCore, pb.Claims, pb.ReplicateRequest | None], Awaitable[pb.ReplicateResponse]
] = _unary("replicate", replicate.serve_replicate)
