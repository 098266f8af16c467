"""HTTP routes of shards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from gazette_aio.aio.turns import in_turns
from gazette_aio.console.exchange import CALL_SECONDS, MAX_ROWS, answer, body, credentials, part
from gazette_aio.console.shard_views import shard_lag, shard_page
from gazette_aio.consumer.api import list_shards
from gazette_aio.consumer.api.lags import lags_of

if TYPE_CHECKING:
    from gazette_aio.console.exchange import OpenClient, OpenShards


class _LagsWanted(msgspec.Struct, forbid_unknown_fields=True):
    ids: list[str]


class ShardDoors:
    """Answers requests for shards.

    Args:
        open_client: Opens a client of the brokers.
        open_shards: Opens a client of a consumer; None if there is no consumer.
    """

    def __init__(self, open_client: OpenClient, open_shards: OpenShards | None) -> None:
        self._open_client = open_client
        self._open_shards = open_shards

    def add_to(self, application: web.Application) -> None:
        """Add the routes."""
        application.router.add_get("/api/shards", self._shards)
        application.router.add_post("/api/lags", self._lags)

    async def _shards(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        offset, limit = part(request)
        async with self._consumer()(credentials(request)) as client:
            listed = await list_shards(client, query.get("selector", ""), timeout=CALL_SECONDS)
        page = shard_page(listed.shards, query.get("text", ""), offset, limit)
        return answer(await in_turns(page))

    async def _lags(self, request: web.Request) -> web.StreamResponse:
        open_shards = self._consumer()
        ids = (await body(request, _LagsWanted)).ids
        if len(ids) > MAX_ROWS:
            raise ValueError(f"more than {MAX_ROWS} shards")
        auth = credentials(request)
        async with (
            asyncio.timeout(CALL_SECONDS),
            open_shards(auth) as consumer,
            self._open_client(auth) as brokers,
        ):
            lags = await lags_of(consumer, brokers, ids)
        return answer([shard_lag(*each) for each in zip(ids, lags, strict=True)])

    def _consumer(self) -> OpenShards:
        if self._open_shards is None:
            raise web.HTTPNotFound(
                reason="the console has no consumer: start it with --consumer.address"
            )
        return self._open_shards
