"""Routes of the gateway: the handler of each request, and responses to failures."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

from aiohttp import web

import gazette_aio.protocol as pb
from gazette_aio.broker.core import DATA_DIRECTORY, open_claims
from gazette_aio.broker.gateway.connection import caller_of, connection_of, text_response
from gazette_aio.broker.gateway.journals import JournalRoutes
from gazette_aio.broker.gateway.json_routes import JsonRoutes
from gazette_aio.broker.gateway.metrics_text import CONTENT_TYPE, metrics_text
from gazette_aio.broker.gateway.target import parse_target, redirect
from gazette_aio.broker.resolver import visibility
from gazette_aio.broker.service.methods import journal_service
from gazette_aio.serving.rpc_error import RpcError, failure_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gazette_aio.broker.core import BrokerCore

_logger = logging.getLogger(__name__)

_VERBS = frozenset(("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT", "TRACE"))


class GatewayRoutes:
    """Answers requests.

    Args:
        allow_origins: Origins whose scripts may use the JSON form from a browser.
        allow_unauthenticated: Whether journals are served to clients without a token.
    """

    def __init__(
        self, core: BrokerCore, *, allow_origins: Iterable[str], allow_unauthenticated: bool
    ) -> None:
        self._core = core
        self._allow_unauthenticated = allow_unauthenticated
        self._journals = JournalRoutes(journal_service(core, self._authorize))
        self._json = JsonRoutes(core, journal_service(core), allow_origins)
        self._tasks: set[asyncio.Task[object]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request.

        Raises:
            ConnectionError: The client is gone, or the answer can't be completed.

        Cancellation: aborts — the connection has to be closed.
        """
        task = asyncio.current_task()
        assert task is not None, "outside of a task"
        connection = connection_of(request)
        self._tasks.add(task)
        connection.begin(request.content)
        try:
            return await self._route(request)
        except ConnectionError:
            raise
        except Exception as error:
            _logger.exception("request failed", extra={"method": request.method})
            if request.writer.output_size > 0:
                raise ConnectionAbortedError("the response is incomplete") from None
            return text_response(failure_text(error), 500)
        finally:
            connection.finish()
            self._tasks.discard(task)

    async def finish(self, grace: float) -> None:
        """Wait for the present requests, and cancel them after `grace` seconds.

        Cancellation: safe.
        """
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in (tasks := list(self._tasks)):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in _VERBS:
            # Wire: requests that don't begin with a verb of HTTP/1.1 aren't answered.
            raise ConnectionAbortedError(f"unknown verb {request.method[:16]}")
        if (problem := _unsupported(request)) is not None:
            response = text_response(f"{problem.value} {problem.phrase}", problem)
            response.force_close()  # What's behind it can't be made sense of.
            return response
        target = parse_target(request.raw_path)
        if request.method != "CONNECT" and (moved := redirect(target)) is not None:
            location, page = moved
            return web.Response(
                status=307,
                headers={"Location": location},
                text=page if request.method in ("GET", "HEAD") else None,
                content_type="text/html",
            )
        match target.path:
            case "/debug/ready":
                return self._ready()
            case "/debug/metrics":
                return self._metrics(request)
            case path if path.startswith("/v1/"):
                return await self._json.answer(request, path)
            case _:
                return await self._journals.answer(request, target)

    def _ready(self) -> web.Response:
        """Return that the broker serves, and what fails nevertheless.

        A broker whose disk is full continues by itself, and serves reads meanwhile: it stays ready.
        """
        failing = self._core.failing()
        lines: list[str] = []
        if problem := failing.pop(DATA_DIRECTORY, ""):
            lines.append(f"the data directory fails: {problem}\n")
        if failing:
            lines.append(f"fragment stores that fail: {len(failing)}, see the log\n")
        return web.Response(text="".join(lines) or None)

    def _metrics(self, request: web.BaseRequest) -> web.Response:
        """Return the counters, with the write heads of journals which the client may list."""
        stats = self._core.metrics.snapshot()
        stats["gazette_failing_stores"] = self._core.failing()
        try:
            claims = self._authorize(caller_of(request).header, pb.Capability.LIST)
        except RpcError:
            pass  # Counters of the broker as a whole aren't anyone's secret.
        else:
            visible = visibility(claims.selector)
            stats["gazette_write_head"] = {
                replica.name: replica.head.offset
                for replica in self._core.replicas
                if visible is None or visible(replica.item.labels)
            }
        body = metrics_text(stats).encode("utf-8", "replace")
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    def _authorize(self, header: Callable[[], str | None], capability: pb.Capability) -> pb.Claims:
        if self._allow_unauthenticated and not header():
            return open_claims(capability)
        return self._core.authorize(header, capability)


def _unsupported(request: web.BaseRequest) -> HTTPStatus | None:
    if not (1, 0) <= request.version <= (1, 1):
        return HTTPStatus.HTTP_VERSION_NOT_SUPPORTED
    # The library decodes chunks, but no other transfer encoding.
    if request.headers.get("Transfer-Encoding", "chunked").lower() != "chunked":
        return HTTPStatus.NOT_IMPLEMENTED
    if request.headers.get("Expect", "100-continue").lower() != "100-continue":
        return HTTPStatus.EXPECTATION_FAILED
    return None
