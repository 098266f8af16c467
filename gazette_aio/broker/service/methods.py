"""Methods of the Journal service, with the rules of tests applied."""

from __future__ import annotations

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
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from gazette_aio.broker.control.rules import RequestKind
    from gazette_aio.broker.core import BrokerCore
    from gazette_aio.broker.service.append import AppendMessage
    from gazette_aio.serving.calls import Authorize, Send


_Serve: TypeAlias = "Callable[[BrokerCore, pb.Claims, Any, Any, Send], Awaitable[None]]"

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
        {path: _Method(core, KINDS[path], serve) for path, serve in _METHODS.items()},
        authorize=authorize or core.authorize,
        counts=core.metrics,
        # Wire: Gazette's metrics show the statuses of requests for one journal.
        plain=frozenset(path for path, kind in KINDS.items() if kind not in ROUTED),
    )


class _Method:
    """A method with the rules of its kind applied. Without rules, nothing is added."""

    def __init__(self, core: BrokerCore, kind: RequestKind, serve: _Serve) -> None:
        self._core = core
        self._kind: RequestKind = kind
        self._serve = serve

    def __call__(
        self,
        claims: pb.Claims,
        request: Any,
        messages: AsyncIterator[AppendMessage] | None,
        send: Send,
    ) -> Awaitable[None]:
        # A stream may have ended before its request.
        if self._kind not in self._core.control.kinds or request is None:
            return self._serve(self._core, claims, request, messages, send)
        if self._kind == "append":
            assert messages is not None, "not a stream"
            return self._append(claims, request, messages, send)
        return self._answer(claims, request, messages, send)

    async def _append(
        self,
        claims: pb.Claims,
        request: pb.AppendRequest,
        messages: AsyncIterator[AppendMessage],
        send: Send,
    ) -> None:
        control = self._core.control
        try:
            verdict = await control.admit(self._kind, request)
        except Exception:  # Predicates of rules may raise anything.
            if not control.is_stopping:
                await _drain(messages)
            raise
        if verdict.responses is not None:
            await _drain(messages)
            (response,) = self._completed(verdict.responses)
            await send(response)
            return
        counter = CutCounter(verdict.cut)
        counter.check()
        counter.count(len(request.content))

        async def send_unless_cut(response: pb.AppendResponse) -> None:
            if response.status == pb.Status.OK:
                counter.reach("after_commit")
            await send(response)

        cut = _CutMessages(messages, counter)
        await self._serve(self._core, claims, request, cut, send_unless_cut)

    async def _answer(self, claims: pb.Claims, request: Any, messages: object, send: Send) -> None:
        verdict = await self._core.control.admit(self._kind, request)
        counter = CutCounter(verdict.cut)

        async def counted(response: Any) -> None:
            length = 0
            if isinstance(response, ContentChunk):
                length = counter.room(len(response.content))
                response = ContentChunk(response.offset, response.content[:length])
            await send(response)
            counter.count(length)
            counter.check()

        counter.check()
        if verdict.responses is None:
            await self._serve(self._core, claims, request, messages, counted)
        for response in self._completed(verdict.responses or ()):
            # Front ends have their own form of content.
            content = self._kind == "read" and response.content
            await counted(ContentChunk(response.offset, content) if content else response)

    def _completed(self, responses: Sequence[Any]) -> list[Any]:
        headers = self._core.resolver
        return completed(self._kind, responses, headers.routed(), headers.unrouted())


async def _drain(messages: AsyncIterator[AppendMessage]) -> None:
    # A gRPC client whose write fails may not see an early answer.
    async for _ in messages:
        pass


class _CutMessages:
    """Messages of an append up to the cut of the stream."""

    def __init__(self, messages: AsyncIterator[AppendMessage], counter: CutCounter) -> None:
        self._messages = messages
        self._counter = counter

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AppendMessage:
        self._counter.check()
        try:
            message = await anext(self._messages)
        except StopAsyncIteration:
            self._counter.reach("before_commit")
            raise
        content = message.content if isinstance(message, pb.AppendRequest) else message
        self._counter.count(len(content))
        return message
