"""Routes of the JSON form: List and Read, one message to a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from aiohttp import web
from google.protobuf.message import Message

import gazette_aio.protocol as pb
from gazette_aio.broker.gateway.answers import code_status
from gazette_aio.broker.gateway.connection import (
    TruncatedBodyError,
    ask_for_body,
    caller_of,
    connection_of,
)
from gazette_aio.broker.gateway.json_form import (
    JsonError,
    not_implemented,
    parse_message,
    request_error,
    result_line,
    stream_error,
)
from gazette_aio.broker.service.read import ContentChunk
from gazette_aio.protocol.service import LIST, READ
from gazette_aio.serving.http_site import cors_headers
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_aio.broker.core import BrokerCore
    from gazette_aio.serving.calls import Service

M = TypeVar("M", bound=Message)

_MAX_DOCUMENT_BYTES = 256 << 10
_INLINE_BYTES = 4 << 10


class JsonRoutes:
    """Answers requests for the JSON form of RPCs.

    Args:
        service: Serves the RPCs.
        allow_origins: Origins whose scripts may send requests from a browser.
    """

    def __init__(self, core: BrokerCore, service: Service, allow_origins: Iterable[str]) -> None:
        self._core = core
        self._service = service
        self._allow_origins = frozenset(allow_origins)

    async def answer(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Answer a request.

        Cancellation: aborts — a body ends without its last chunk.
        """
        headers = cors_headers(request, self._allow_origins)
        if request.method == "OPTIONS":
            return web.Response(headers=headers)
        answer = _Stream(request, headers)
        try:
            match request.method, path:
                case "POST", "/v1/journals/list":
                    await self._list(request, answer)
                case "POST", "/v1/journals/read":
                    await self._read(request, answer)
                case _:
                    return _document(501, not_implemented(), headers)
        except JsonError as error:
            return _document(400, request_error(str(error), "INVALID_ARGUMENT"), headers)
        except RpcError as error:
            document = stream_error(error.text, error.code)
            if answer.response is None:
                return _document(code_status(error.code), document, headers)
            await answer.response.write(document + b"\n")
        return answer.response or _document(200, b"", headers)

    async def _list(self, request: web.BaseRequest, answer: _Stream) -> None:
        async def receive() -> pb.ListRequest:
            message = await self._message(pb.ListRequest, request)
            if message.watch:
                connection_of(request).endless()
            return message

        await self._service.call(LIST, caller_of(request), receive, None, answer.send)

    async def _read(self, request: web.BaseRequest, answer: _Stream) -> None:
        async def receive() -> pb.ReadRequest:
            message = await self._message(pb.ReadRequest, request)
            # A revision may never be reached.
            if message.block or message.min_etcd_revision or message.header.etcd.revision:
                connection_of(request).endless()
            return message

        async def send(response: pb.ReadResponse | ContentChunk) -> None:
            if isinstance(response, ContentChunk):
                offset, content = response
                response = pb.ReadResponse(offset=offset, content=content)
            await answer.send(response)

        await self._service.call(READ, caller_of(request), receive, None, send)

    async def _message(self, cls: type[M], request: web.BaseRequest) -> M:
        document = bytearray()
        await ask_for_body(request)
        try:
            while part := await request.content.readany():
                document += part
                if len(document) > _MAX_DOCUMENT_BYTES:
                    raise RpcError(
                        f"request larger than max ({_MAX_DOCUMENT_BYTES})", "RESOURCE_EXHAUSTED"
                    )
        except (TruncatedBodyError, web.RequestPayloadError):
            raise JsonError("unexpected EOF") from None
        if len(document) <= _INLINE_BYTES:
            return parse_message(cls, bytes(document))
        return await self._core.bulk.run(parse_message, cls, bytes(document))


class _Stream:
    """The response to a request, begun with its first message."""

    def __init__(self, request: web.BaseRequest, headers: dict[str, str]) -> None:
        self.response: web.StreamResponse | None = None
        self._request = request
        self._headers = headers

    async def send(self, message: Message) -> None:
        if self.response is None:
            headers = {
                **self._headers,
                "Content-Type": "application/json",
                "Grpc-Metadata-Content-Type": "application/grpc",
            }
            self.response = web.StreamResponse(headers=headers)
            if self._request.version < (1, 1):
                self.response.force_close()  # The end of the connection is that of the body.
            await self.response.prepare(self._request)
        await self.response.write(result_line(message))


def _document(status: int, body: bytes, headers: dict[str, str]) -> web.Response:
    headers = {**headers, "Content-Type": "application/json"}
    return web.Response(status=status, body=body, headers=headers)
