"""Methods of the Journal service, with the rules of tests applied."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import gazette_aio.protocol as pb
from gazette_aio.broker.control.rules import KINDS, ROUTED, CutCounter, completed
from gazette_aio.broker.service.append import serve_append
from gazette_aio.broker.service.apply import serve_apply
from gazette_aio.broker.service.fragments import serve_fragments
from gazette_aio.broker.service.health import serve_health
from gazette_aio.broker.service.list import serve_list
from gazette_aio.broker.service.read import ContentChunk, serve_read
from gazette_aio.broker.service.replicate import serve_replicate
from gazette_aio.protocol import service
from gazette_aio.serving.calls import Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from gazette_aio.broker.control.rules import RequestKind
    from gazette_aio.broker.core import BrokerCore
    from gazette_aio.serving.calls import Authorize, Send


_Serve: TypeAlias = (
    "Callable[[BrokerCore, pb.Claims, Any, AsyncIterator[Any], Send], Awaitable[None]]"
)

_METHODS: Final[dict[str, _Serve]] = {
    service.LIST: serve_list,
    service.APPLY: serve_apply,
    service.READ: serve_read,
    service.APPEND: serve_append,
    service.REPLICATE: serve_replicate,
    service.LIST_FRAGMENTS: serve_fragments,
    service.FRAGMENT_STORE_HEALTH: serve_health,
}


def journal_service(core: BrokerCore, authorize: Authorize | None = None) -> Service:
    """Return the Journal service of a broker.

    Args:
        core: The broker.
        authorize: Authorizes calls; None does by the broker's keys.
    """
    return Service(
        service.SERVICE_NAME,
        service.METHODS,
        {path: partial(_serve, core, KINDS[path], serve) for path, serve in _METHODS.items()},
        authorize=authorize or core.authorize,
        counts=core.metrics,
        # Wire: Gazette's metrics show the statuses of requests for one journal.
        plain=frozenset(path for path, kind in KINDS.items() if kind not in ROUTED),
    )


def _serve(
    core: BrokerCore,
    kind: RequestKind,
    serve: _Serve,
    claims: pb.Claims,
    request: Any,
    messages: AsyncIterator[Any],
    send: Send,
) -> Awaitable[None]:
    # A stream may have ended before its request.
    if kind in core.control.kinds and request is not None:
        return _serve_with_rules(core, kind, serve, claims, request, messages, send)
    return serve(core, claims, request, messages, send)


async def _serve_with_rules(
    core: BrokerCore,
    kind: RequestKind,
    serve: _Serve,
    claims: pb.Claims,
    request: Any,
    messages: AsyncIterator[Any],
    send: Send,
) -> None:
    is_append = kind == "append"
    try:
        verdict = await core.control.admit(kind, request)
    except Exception:  # Predicates of rules may raise anything.
        if is_append and not core.control.is_stopping:
            await _drain(messages)
        raise
    counter = CutCounter(verdict.cut)

    async def send_append(response: pb.AppendResponse) -> None:
        if response.status == pb.Status.OK:
            counter.reach("after_commit")
        await send(response)

    async def send_counted(response: Any) -> None:
        length = 0
        if isinstance(response, ContentChunk):
            length = counter.room(len(response.content))
            response = ContentChunk(response.offset, response.content[:length])
        await send(response)
        counter.count(length)
        counter.check()

    if verdict.responses is None:
        counter.check()
        if is_append:
            counter.count(len(request.content))
            cut = _CutMessages(messages, counter)
            await serve(core, claims, request, cut, send_append)
        else:
            await serve(core, claims, request, messages, send_counted)
        return
    if is_append:
        await _drain(messages)
    else:
        counter.check()
    headers = core.headers
    for response in completed(kind, verdict.responses, headers.routed(), headers.unrouted()):
        if kind == "read" and response.content:
            response = ContentChunk(response.offset, response.content)  # noqa: PLW2901
        await (send if is_append else send_counted)(response)


async def _drain(messages: AsyncIterator[Any]) -> None:
    # A gRPC client whose write fails may not see an early answer.
    async for _ in messages:
        pass


class _CutMessages:
    """Messages of an append up to the cut of the stream."""

    def __init__(self, messages: AsyncIterator[Any], counter: CutCounter) -> None:
        self._messages = messages
        self._counter = counter

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        self._counter.check()
        try:
            message = await anext(self._messages)
        except StopAsyncIteration:
            self._counter.reach("before_commit")
            raise
        content = message.content if isinstance(message, pb.AppendRequest) else message
        self._counter.count(len(content))
        return message
