"""Watches of Etcd, which resume where they were interrupted."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc.aio

from gazette_aio.consumer.keyspace.errors import (
    CompactedError,
    StoreRefusedError,
    StoreUnavailableError,
)
from gazette_aio.consumer.keyspace.etcd import failures, messages, rpcs
from gazette_aio.consumer.keyspace.etcd._generated import etcd_pb2 as pb
from gazette_aio.consumer.keyspace.etcd.calls import answer
from gazette_aio.consumer.keyspace.etcd.cursor import (
    WatchCursor,
    WatchDeniedError,
    back_off_seconds,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from gazette_aio.consumer.keyspace.etcd.calls import Calls
    from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
    from gazette_aio.consumer.keyspace.etcd.peers import Peer, Peers
    from gazette_aio.consumer.keyspace.store import WatchResponse

_logger = logging.getLogger(__name__)


class Watches:
    """Begins watches.

    Args:
        peers: Members of the cluster.
        calls: Calls of the cluster.
        options: Options of the client.
    """

    def __init__(self, peers: Peers, calls: Calls, options: EtcdOptions) -> None:
        self._peers = peers
        self._calls = calls
        self._options = options

    async def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchResponse, None]:
        """Iterate changes from `start_revision` on. See `KeyValueStore.watch`.

        Cancellation: safe — the iteration ends, and the watch with it.
        """
        cursor = WatchCursor(start_revision)
        token = ""  # The one that the watch was refused with.
        while True:
            used = token
            await asyncio.sleep(back_off_seconds(cursor.attempt))
            cursor.begin()
            try:
                peer = await self._calls.peer()
                used = await self._calls.token(peer, stale=token or None)
                try:
                    async with aclosing(self._attempt(peer, used, prefix, cursor)) as responses:
                        async for response in responses:
                            token = ""
                            yield response
                except StoreUnavailableError:
                    self._peers.avoid(peer)
                    raise
            except CompactedError:
                raise
            except StoreRefusedError as error:
                is_stale = isinstance(error, WatchDeniedError) or failures.is_stale_token(error)
                # A second token doesn't help where the first one wasn't outdated.
                if not (is_stale and self._calls.has_user) or token:
                    raise
                token = used
            except StoreUnavailableError as error:
                _logger.info("the watch of %s begins again: %s", prefix, error)

    async def _attempt(
        self, peer: Peer, token: str, prefix: str, cursor: WatchCursor
    ) -> AsyncGenerator[WatchResponse, None]:
        """Iterate the responses of one stream, until it fails."""
        call = peer.methods.watch(rpcs.metadata(token))
        try:
            async with asyncio.timeout(self._options.timeout_seconds):
                request = messages.watch_request(prefix, cursor.revision)
                await answer(call.write(request.SerializeToString()))
                message = await _next(call.read())
            while True:
                if (response := cursor.receive(message)) is not None:
                    yield response
                message = await _next(call.read())
        except TimeoutError:
            raise StoreUnavailableError("Etcd doesn't begin the watch in time") from None
        finally:
            call.cancel()
            # Invariant: an error that is kept doesn't keep its call, which tracebacks lead to.
            del call


async def _next(reading: Any) -> pb.WatchResponse:
    data = await answer(reading)
    if data is grpc.aio.EOF:
        raise StoreUnavailableError("Etcd has ended the watch's stream")
    return rpcs.decoded(pb.WatchResponse, data)
