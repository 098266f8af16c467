"""Doors of the console: files of the page, and what it asks for as JSON."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

import gazette_aio.protocol as pb
from gazette_aio.client import list_all_fragments, list_all_journals
from gazette_aio.client.reads.head import head_of
from gazette_aio.console.guards import HEADERS, bearer_token, refusal
from gazette_aio.console.shard_views import ShardPage, shard_page
from gazette_aio.console.views import Head, JournalDetail, JournalPage, journal_detail, journal_page
from gazette_aio.consumer.api import list_shards

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping
    from contextlib import AbstractAsyncContextManager

    from gazette_aio.client import JournalClient
    from gazette_aio.console.assets import Asset
    from gazette_aio.console.tails import Tails
    from gazette_aio.consumer.api import ShardClient

    OpenClient = Callable[[pb.Authorizer], AbstractAsyncContextManager[JournalClient]]
    """Opens a client that authorizes its calls as it's told."""

    OpenShards = Callable[[pb.Authorizer], AbstractAsyncContextManager[ShardClient]]
    """Opens a client of the members of a consumer, as OpenClient does of brokers."""

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_MAX_ROWS: Final = 200
_MAX_BODY_BYTES: Final = 256 << 10
_CONCURRENT_HEADS: Final = 32
_HEAD_SECONDS: Final = 5.0
_CALL_SECONDS: Final = 20.0
_STATUSES: Final = {"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403, "INVALID_ARGUMENT": 400}


class _HeadsWanted(msgspec.Struct, forbid_unknown_fields=True):
    names: list[str]


class Doors:
    """Answers the requests of the page.

    Each request has a client of its own, with the token of the browser or with none. The console's
    own credentials are never lent to a browser.

    Args:
        open_client: Opens a client of the brokers.
        assets: Files of the page, by path.
        hosts: Host names by which browsers call the console.
        tails: Live tails.
        open_shards: Opens a client of a consumer; None if there is no consumer.
    """

    def __init__(
        self,
        open_client: OpenClient,
        assets: Mapping[str, Asset],
        hosts: Collection[str],
        tails: Tails,
        open_shards: OpenShards | None = None,
    ) -> None:
        self._open_client = open_client
        self._assets = assets
        self._hosts = frozenset(hosts)
        self._tails = tails
        self._open_shards = open_shards

    def application(self) -> web.Application:
        """Return the application of all doors."""
        application = web.Application(middlewares=[self._guard], client_max_size=_MAX_BODY_BYTES)
        application.router.add_get("/api/journals", self._journals)
        application.router.add_get("/api/journal", self._journal)
        application.router.add_get("/api/shards", self._shards)
        application.router.add_get("/api/tail", self._tail)
        application.router.add_post("/api/heads", self._heads)
        for path in self._assets:
            application.router.add_get(path, self._asset)
        application.on_response_prepare.append(_complete)
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        is_page = request.path in self._assets
        if (reason := refusal(request.headers, self._hosts, is_page=is_page)) is not None:
            return _failure(403, reason)
        try:
            return await handler(request)
        except web.HTTPException as error:
            return _failure(error.status, error.reason)
        except pb.TransportError as error:
            return _failure(_STATUSES.get(error.code, 502), str(error))
        except pb.BrokerStatusError as error:
            is_missing = error.status == pb.Status.JOURNAL_NOT_FOUND
            return _failure(404 if is_missing else 502, str(error))
        except pb.AuthorizationError as error:
            return _failure(401, str(error))
        except (ValueError, msgspec.ValidationError) as error:
            return _failure(400, str(error))
        except pb.OperationTimeoutError as error:
            return _failure(504, str(error))
        except pb.GazetteError as error:
            return _failure(502, str(error))

    async def _asset(self, request: web.Request) -> web.StreamResponse:
        asset = self._assets[request.path]
        return web.Response(body=asset.content, headers={"Content-Type": asset.content_type})

    async def _journals(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        offset, limit = _part(request)
        async with self._client(request) as client:
            listed = await list_all_journals(
                client, query.get("selector", ""), timeout=_CALL_SECONDS
            )
        page: JournalPage = journal_page(listed.journals, query.get("text", ""), offset, limit)
        return _answer(page)

    async def _shards(self, request: web.Request) -> web.StreamResponse:
        if self._open_shards is None:
            return _failure(404, "the console has no consumer: start it with --consumer.address")
        query = request.query
        offset, limit = _part(request)
        async with self._open_shards(_credentials(request)) as client:
            listed = await list_shards(client, query.get("selector", ""), timeout=_CALL_SECONDS)
        page: ShardPage = shard_page(listed.shards, query.get("text", ""), offset, limit)
        return _answer(page)

    async def _journal(self, request: web.Request) -> web.StreamResponse:
        name = request.query.get("name", "")
        pb.validate_journal(name)
        async with self._client(request) as client:
            by_name = pb.LabelSelector(include=pb.label_set("name", name))
            listed = await list_all_journals(client, by_name, timeout=_CALL_SECONDS)
            if not listed.journals:
                return _failure(404, "there is no such journal")
            fragments = await list_all_fragments(client, name, timeout=_CALL_SECONDS)
            head = await head_of(client, name, _HEAD_SECONDS)
        detail: JournalDetail = journal_detail(
            listed.journals[0], [fragment.spec for fragment in fragments.fragments], head
        )
        return _answer(detail)

    async def _tail(self, request: web.Request) -> web.StreamResponse:
        name = request.query.get("name", "")
        pb.validate_journal(name)
        return await self._tails.answer(request, self._client(request), name)

    async def _heads(self, request: web.Request) -> web.StreamResponse:
        wanted = msgspec.json.decode(await request.read(), type=_HeadsWanted).names
        if len(wanted) > _MAX_ROWS:
            raise ValueError(f"more than {_MAX_ROWS} journals")
        for name in wanted:
            pb.validate_journal(name)
        turns = asyncio.Semaphore(_CONCURRENT_HEADS)
        async with self._client(request) as client:

            async def head(name: str) -> Head:
                try:
                    async with turns:
                        known = await head_of(client, name, _HEAD_SECONDS)
                except (pb.GazetteError, TimeoutError) as error:
                    return Head(name=name, head="", problem=str(error) or "no answer in time")
                return Head(name=name, head=str(known), problem="")

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(head(name)) for name in wanted]
        return _answer([task.result() for task in tasks])

    def _client(self, request: web.Request) -> AbstractAsyncContextManager[JournalClient]:
        return self._open_client(_credentials(request))


def _credentials(request: web.Request) -> pb.Authorizer:
    token = bearer_token(request.headers.get("Authorization"))
    return pb.NoopAuth() if token is None else pb.BearerAuth(token)


def _part(request: web.Request) -> tuple[int, int]:
    """Return the first row of the part of a list that a request is for, and its length."""
    offset, limit = (
        _number(request.query.get(name, default))
        for name, default in (("offset", "0"), ("limit", "100"))
    )
    return offset, min(limit, _MAX_ROWS)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError("expected a number that isn't negative")
    return int(text)


def _answer(view: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(view), headers={"Content-Type": _JSON})


def _failure(status: int, problem: str) -> web.Response:
    body = msgspec.json.encode({"problem": problem})
    return web.Response(status=status, body=body, headers={"Content-Type": _JSON})


async def _complete(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
    response.headers.pop("Server", None)


_JSON: Final = "application/json; charset=utf-8"
