"""Members of a cluster of Etcd, each with a channel, and the choice among them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, TypeAlias

from gazette_aio.aio.owner import Owner
from gazette_aio.client.rpc.channel_pool import MemberConnection
from gazette_aio.consumer.keyspace.errors import KeyValueStoreError, StoreUnavailableError
from gazette_aio.protocol.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import grpc.aio

Peer: TypeAlias = MemberConnection[None]

_logger = logging.getLogger(__name__)

_FIRST_POLL_SECONDS: Final = 0.005
_LAST_POLL_SECONDS: Final = 0.1
_FIRST_WARNING_SECONDS: Final = 1.0
_WARNING_SECONDS: Final = 10.0


class Peers(Owner):
    """Channels to the members of a cluster. One of them serves until it fails.

    Args:
        endpoints: Endpoints of the members.
        dial: Makes the channel to an endpoint.
    """

    def __init__(self, endpoints: Iterable[str], dial: Callable[[str], grpc.aio.Channel]) -> None:
        self._configured = tuple(dict.fromkeys(endpoints))
        self._dial = dial
        self._peers: list[Peer] = []
        self._is_closed = False
        self._is_warned = False
        self.endpoints: tuple[str, ...] = self._configured
        """Endpoints in the order of choice. Other threads may read it."""

    def __repr__(self) -> str:
        return f"<Peers {', '.join(self.endpoints)}>"

    @property
    def is_open(self) -> bool:
        """Whether there are channels."""
        return bool(self._peers)

    def avoid(self, peer: Peer) -> None:
        """Prefer all other members to this one, which doesn't answer as it should."""
        if peer in self._peers:
            self._set([*(each for each in self._peers if each is not peer), peer])

    async def ready(self, timeout_seconds: float | None = None) -> Peer:
        """Return a member to which there is a connection. Warnings are logged while it waits.

        Args:
            timeout_seconds: Time to wait, or None to wait for ever.

        Raises:
            StoreUnavailableError: There is no connection within the time.

        Cancellation: safe.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        warning = began + _FIRST_WARNING_SECONDS
        pause = _FIRST_POLL_SECONDS
        while (peer := self._connected()) is None:
            now = loop.time()
            if timeout_seconds is not None and now >= began + timeout_seconds:
                raise StoreUnavailableError(
                    f"no connection to Etcd at {', '.join(self.endpoints)}"
                    f": {await self._failures()}",
                    code="UNAVAILABLE",
                )
            if now >= warning:
                warning = now + _WARNING_SECONDS
                self._is_warned = True
                _logger.warning(
                    "no connection to Etcd at %s yet: %s",
                    ", ".join(self.endpoints),
                    await self._failures(),
                )
            # Polled: a wait for the first of several channels would take a task for each of them.
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LAST_POLL_SECONDS)
        if self._is_warned:
            self._is_warned = False
            _logger.warning("connected to Etcd at %s", peer.endpoint)
        return peer

    async def aclose(self) -> None:
        """Close all channels, which ends their calls. Idempotent.

        Cancellation: safe — call again.
        """
        self._is_closed = True
        while self._peers:
            await self._peers[-1].channel.close()
            self._peers.pop()

    def _connected(self) -> Peer | None:
        if self._is_closed:
            raise KeyValueStoreError("the client of Etcd is closed")
        if not self._peers:
            self._set([self._new(endpoint) for endpoint in self._configured])
        for peer in self._peers:
            if peer.is_ready():
                return peer
            peer.state()  # It connects, so that it's preferred to those after it.
        return None

    def _new(self, endpoint: str) -> Peer:
        return MemberConnection(endpoint, self._dial(endpoint), lambda _: None)

    def _set(self, peers: list[Peer]) -> None:
        self._peers = peers
        self.endpoints = tuple(peer.endpoint for peer in peers)

    async def _failures(self) -> str:
        reasons = dict.fromkeys([await _failure(peer) for peer in tuple(self._peers)])
        return "; ".join(filter(None, reasons)) or "no answer"


async def _failure(peer: Peer) -> str:
    try:
        return await peer.failure()
    except TransportError:
        return ""
