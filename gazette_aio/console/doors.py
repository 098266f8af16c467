"""HTTP routes of the console: files of the page, and the JSON that the page requests."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import Turns, in_turns
from gazette_aio.client import iter_fragments, list_all_journals
from gazette_aio.client.reads.head import head_of
from gazette_aio.console.exchange import (
    CALL_SECONDS,
    HEAD_SECONDS,
    MAX_BODY_BYTES,
    MAX_ROWS,
    answer,
    body,
    credentials,
    failure,
    part,
)
from gazette_aio.console.guards import HEADERS, bearer_token, refusal
from gazette_aio.console.shard_doors import ShardDoors
from gazette_aio.console.spec_doors import SpecDoors
from gazette_aio.console.views import FragmentSums, Head, ListWanted, journal_detail, journal_page

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from gazette_aio.console.assets import Asset
    from gazette_aio.console.exchange import OpenClient, OpenShards
    from gazette_aio.console.listings import Listings
    from gazette_aio.console.tails import Tails

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_CONCURRENT_HEADS = 32
_STATUSES = {"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403, "INVALID_ARGUMENT": 400}


class _HeadsWanted(msgspec.Struct, forbid_unknown_fields=True):
    names: list[str]


class Doors:
    """Answers the requests of the page.

    Each request has its own client, with the token of the browser or without a token. A browser
    never uses credentials of the console.

    Args:
        open_client: Opens a client of the brokers.
        assets: Files of the page, by path.
        hosts: Host names by which browsers call the console.
        tails: Live tails.
        listings: Listings of journals.
        open_shards: Opens a client of a consumer; None if there is no consumer.
        read_only: Whether edits are refused.
    """

    def __init__(
        self,
        open_client: OpenClient,
        assets: Mapping[str, Asset],
        hosts: Collection[str],
        *,
        tails: Tails,
        listings: Listings,
        open_shards: OpenShards | None = None,
        read_only: bool = False,
    ) -> None:
        self._open_client = open_client
        self._assets = assets
        self._hosts = frozenset(hosts)
        self._tails = tails
        self._listings = listings
        self._rooms = (
            ShardDoors(open_client, open_shards),
            SpecDoors(open_client, applied=listings.forget, read_only=read_only),
        )

    def application(self) -> web.Application:
        """Return the application with all routes."""
        application = web.Application(middlewares=[self._guard], client_max_size=MAX_BODY_BYTES)
        application.router.add_get("/api/journals", self._journals)
        application.router.add_get("/api/journal", self._journal)
        application.router.add_get("/api/tail", self._tail)
        application.router.add_post("/api/heads", self._heads)
        for room in self._rooms:
            room.add_to(application)
        for path in self._assets:
            application.router.add_get(path, self._asset)
        application.on_response_prepare.append(_complete)
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        is_page = request.path in self._assets
        reason = refusal(request.method, request.headers, self._hosts, is_page=is_page)
        if reason is not None:
            return failure(403, reason)
        try:
            return await handler(request)
        except web.HTTPException as error:
            return failure(error.status, error.reason)
        except pb.TransportError as error:
            return failure(_STATUSES.get(error.code, 502), str(error))
        except pb.BrokerStatusError as error:
            is_missing = error.status == pb.Status.JOURNAL_NOT_FOUND
            return failure(404 if is_missing else 502, str(error))
        except pb.AuthorizationError as error:
            return failure(401, str(error))
        except (ValueError, msgspec.ValidationError, pb.ConfigurationError) as error:
            return failure(400, str(error))
        except (pb.OperationTimeoutError, TimeoutError) as error:
            return failure(504, str(error) or "no answer in time")
        except pb.GazetteError as error:
            return failure(502, str(error))

    async def _asset(self, request: web.Request) -> web.StreamResponse:
        asset = self._assets[request.path]
        return web.Response(body=asset.content, headers={"Content-Type": asset.content_type})

    async def _journals(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        offset, limit = part(request)
        folder = query.get("folder", "")
        if folder and not folder.endswith("/"):
            raise ValueError("expected a folder that ends in a slash")
        wanted = ListWanted(
            offset=offset,
            limit=limit,
            folder=folder,
            text=query.get("text", ""),
            in_folders="folder" in query,
        )
        auth, token = credentials(request), bearer_token(request.headers.get("Authorization"))
        journals = await self._listings.get(auth, token, query.get("selector", ""))
        return answer(await in_turns(journal_page(journals, wanted)))

    async def _journal(self, request: web.Request) -> web.StreamResponse:
        name = request.query.get("name", "")
        pb.validate_journal(name)
        async with self._open_client(credentials(request)) as client:
            by_name = pb.LabelSelector(include=pb.label_set("name", name))
            listed = await list_all_journals(client, by_name, timeout=CALL_SECONDS)
            if not listed.journals:
                return failure(404, "there is no such journal")
            sums, turns = FragmentSums(), Turns()
            async with (
                asyncio.timeout(CALL_SECONDS),
                aclosing(iter_fragments(client, name)) as fragments,
            ):
                async for fragment in fragments:
                    sums.add(fragment.spec)
                    await turns.rest()
            head = await head_of(client, name, HEAD_SECONDS)
        return answer(journal_detail(listed.journals[0], sums, head))

    async def _tail(self, request: web.Request) -> web.StreamResponse:
        name = request.query.get("name", "")
        pb.validate_journal(name)
        return await self._tails.answer(
            request,
            self._open_client(credentials(request)),
            name,
            messages=request.query.get("form") == "messages",
            uuid_path=request.query.get("uuid", ""),
        )

    async def _heads(self, request: web.Request) -> web.StreamResponse:
        wanted = (await body(request, _HeadsWanted)).names
        if len(wanted) > MAX_ROWS:
            raise ValueError(f"more than {MAX_ROWS} journals")
        for name in wanted:
            pb.validate_journal(name)
        turns = asyncio.Semaphore(_CONCURRENT_HEADS)
        async with self._open_client(credentials(request)) as client:

            async def head(name: str) -> Head:
                try:
                    async with turns:
                        known = await head_of(client, name, HEAD_SECONDS)
                except (pb.GazetteError, TimeoutError) as error:
                    return Head(name=name, head="", problem=str(error) or "no answer in time")
                return Head(name=name, head=str(known), problem="")

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(head(name)) for name in wanted]
        return answer([task.result() for task in tasks])


async def _complete(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
    response.headers.pop("Server", None)
