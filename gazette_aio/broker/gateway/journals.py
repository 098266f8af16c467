"""Routes of journals: GET, HEAD and PUT."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from aiohttp import web

import gazette_aio.protocol as pb
from gazette_aio.broker.gateway.answers import (
    append_error,
    append_headers,
    code_status,
    content_type,
    read_headers,
    read_status,
)
from gazette_aio.broker.gateway.connection import (
    TrailedResponse,
    TruncatedBodyError,
    ask_for_body,
    caller_of,
    connection_of,
    text_response,
)
from gazette_aio.broker.gateway.target import QueryError, parse_read_query
from gazette_aio.broker.service.read import ContentChunk
from gazette_aio.protocol.service import APPEND, READ
from gazette_aio.serving.calls import EndOfCallError
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from gazette_aio.broker.gateway.target import RequestTarget
    from gazette_aio.broker.service.append import AppendMessage
    from gazette_aio.serving.calls import Service


class JournalRoutes:
    """Answers requests for journals.

    Args:
        service: Serves the requests.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, request: web.BaseRequest, target: RequestTarget) -> web.StreamResponse:
        """Answer a request for the journal that the path names.

        Cancellation: aborts — a body ends without its last chunk, an append is rolled back.
        """
        match request.method:
            case "GET":
                return await self._read(request, target, metadata_only=False)
            case "HEAD":
                return await self._read(request, target, metadata_only=True)
            case "PUT":
                return await self._append(request, target)
            case method:
                return text_response(f"unknown method: {method}", 400)

    async def _read(
        self, request: web.BaseRequest, target: RequestTarget, *, metadata_only: bool
    ) -> web.StreamResponse:
        async def receive() -> pb.ReadRequest:
            offset, block = parse_read_query(target.query)
            message = pb.ReadRequest(
                journal=target.path[1:], offset=offset, block=block, metadata_only=metadata_only
            )
            pb.validate(message)
            if block:
                connection_of(request).endless()
            return message

        answer = _ReadAnswer(request, target.path)
        try:
            await self._service.call(READ, caller_of(request), receive, None, answer.send)
        except (QueryError, pb.ValidationError) as error:
            return _refusal(error)
        except RpcError as error:
            # A body that is empty because of damage would look like the end of the journal.
            if answer.first is None or (error.code == "DATA_LOSS" and answer.response is None):
                return _refusal(error)
            answer.reason = error.text
        return await answer.end()

    async def _append(self, request: web.BaseRequest, target: RequestTarget) -> web.StreamResponse:
        answer = web.Response()

        async def receive() -> pb.AppendRequest:
            if target.query.strip("&"):
                raise QueryError("an append takes no query")
            first = pb.AppendRequest(journal=target.path[1:])
            pb.validate(first)
            return first

        async def send(response: pb.AppendResponse) -> None:
            nonlocal answer
            if response.status != pb.Status.OK:
                answer = _closing(request, text_response(append_error(response), 500))
            else:
                headers = append_headers(response, target.path)
                answer = web.Response(status=204, headers=headers)

        try:
            async with contextlib.aclosing(_append_messages(request)) as messages:
                await self._service.call(APPEND, caller_of(request), receive, messages, send)
        except (RpcError, QueryError, pb.ValidationError) as error:
            return _closing(request, _refusal(error))
        return answer


class _ReadAnswer:
    """Response to a GET or HEAD in progress.

    The first response of the broker may have another offset than requested, which the headers show.
    A later jump can't be shown in headers, so the body ends.
    """

    def __init__(self, request: web.BaseRequest, path: str) -> None:
        self.first: pb.ReadResponse | None = None
        """First response of the broker, for status and headers."""
        self.response: TrailedResponse | None = None
        """Response to the client, once content is sent."""
        self.reason = "broker terminated RPC"
        """Why the body ends, if it ended now."""
        self._request = request
        self._path = path
        self._offset = 0

    async def send(self, message: pb.ReadResponse | ContentChunk) -> None:
        if isinstance(message, ContentChunk):
            self._offset += len(message.content)
            response = self.response or await self._begin(message.content)
            await response.write(message.content)
            return
        is_first = self.first is None
        self.first = self.first or message
        if message.status != pb.Status.OK:
            self.reason = pb.Status.Name(message.status)
        elif not is_first and message.offset != self._offset:
            self.reason = "offset jump"
        else:
            self._offset = message.offset
            return
        raise EndOfCallError

    async def end(self) -> web.StreamResponse:
        first = self.first
        if first is None:
            return text_response(self.reason, 500)
        status, headers = read_status(first.status), read_headers(first, self._path)
        if first.status != pb.Status.OK:
            return text_response(self.reason, status, headers)
        if self._request.method == "HEAD":
            return web.Response(status=status, headers=headers)
        response = self.response or await self._begin(b"")
        response.reason_of_end = self.reason
        return response

    async def _begin(self, content: bytes) -> TrailedResponse:
        assert self.first is not None
        response = self.response = TrailedResponse(
            self._request, read_status(self.first.status), read_headers(self.first, self._path)
        )
        response.headers["Content-Type"] = content_type(content)
        await response.prepare(self._request)
        return response


async def _append_messages(request: web.BaseRequest) -> AsyncGenerator[AppendMessage, None]:
    await ask_for_body(request)
    try:
        while content := await request.content.readany():
            yield content
    except (TruncatedBodyError, web.RequestPayloadError) as error:
        raise RpcError("unexpected EOF") from error
    yield pb.AppendRequest()


def _refusal(error: RpcError | QueryError | pb.ValidationError) -> web.Response:
    if not isinstance(error, RpcError):
        return text_response(str(error), 400)
    status = code_status(error.code)
    response = text_response(error.text, status)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _closing(request: web.BaseRequest, response: web.Response) -> web.Response:
    """Return a response which ends the connection if the request's body wasn't read."""
    if not request.content.is_eof():
        response.force_close()
    return response
