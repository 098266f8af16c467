"""Routes of journals, taken from the responses of brokers."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

import gazette_aio.protocol as pb
from gazette_aio.client.options import CACHE_SIZE, CACHE_TTL
from gazette_aio.client.rpc.member_choice import Members, members_of
from gazette_aio.protocol.journal import strip_meta

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_BYTES: Final = 16 << 10
"""Size beyond which a route isn't kept; common ones take some hundreds of bytes."""


class DispatchRouter(Protocol):
    """Routes of journals. Metadata segments of their names are ignored."""

    def route(self, journal: str) -> pb.Route:
        """Return the route of a journal; without members if it's unknown."""
        ...

    def members(self, journal: str) -> Members | None:
        """Return the members of the route of a journal, or None if it's unknown."""
        ...

    def update_route(self, journal: str, route: pb.Route | None) -> None:
        """Set the route of a journal; None, or a route without members, removes it."""
        ...

    def is_noop_router(self) -> bool:
        """Return whether no route is ever known."""
        ...


class NoopDispatchRouter:
    """A router without routes: the broker at the client's address proxies all RPCs."""

    def route(self, journal: str) -> pb.Route:  # noqa: ARG002
        """Return a route without members."""
        return pb.Route(primary=-1)

    def members(self, journal: str) -> Members | None:  # noqa: ARG002
        """Return None."""
        return None

    def update_route(self, journal: str, route: pb.Route | None) -> None:
        """Do nothing."""

    def is_noop_router(self) -> bool:
        """Return True."""
        return True


class _Entry:
    __slots__ = ("encoded", "fresh_until", "members")

    def __init__(self, route: pb.Route, encoded: bytes) -> None:
        self.encoded = encoded
        self.members = members_of(route)
        self.fresh_until = 0.0


class RouteCache:
    """Cache of the routes of the journals that were used last.

    A look-up protects a route from eviction, but doesn't prolong its time. A cache belongs to one
    event loop.

    Args:
        size: Number of routes to keep, one or more.
        ttl: Seconds for which a route is kept.
        clock: Returns the time in seconds.

    Raises:
        ConfigurationError: `size` or `ttl` is out of range.
    """

    def __init__(
        self,
        size: int = CACHE_SIZE,
        ttl: float = CACHE_TTL,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if size < 1:
            raise pb.ConfigurationError(f"size of a route cache must be one or more ({size})")
        if not ttl >= 0:
            raise pb.ConfigurationError(f"ttl of a route cache must not be negative ({ttl:g})")
        self._size = size
        self._ttl = ttl
        self._clock = clock
        # In the order of their last use, the oldest first.
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def route(self, journal: str) -> pb.Route:
        """Return the route of a journal; without members if it's unknown."""
        if self.members(journal) is None:
            return pb.Route(primary=-1)
        return pb.Route.FromString(self._entries[strip_meta(journal)].encoded)

    def members(self, journal: str) -> Members | None:
        """Return the members of the route of a journal, or None if it's unknown."""
        entries = self._entries
        # Invariant: keys are plain names, as in listings.
        journal = strip_meta(journal)
        entry = entries.get(journal)
        if entry is None:
            return None
        if entry.fresh_until < self._clock():
            del entries[journal]
            return None
        entries.move_to_end(journal)
        return entry.members

    def update_route(self, journal: str, route: pb.Route | None) -> None:
        """Set the route of a journal; None, or a route without members, removes it."""
        entries = self._entries
        journal = strip_meta(journal)
        encoded = b"" if route is None else route.SerializeToString()
        if route is None or not route.members or len(encoded) > _MOST_BYTES:
            entries.pop(journal, None)
            return
        entry = entries.get(journal)
        if entry is None or entry.encoded != encoded:
            entry = entries[journal] = _Entry(route, encoded)
        entry.fresh_until = self._clock() + self._ttl
        entries.move_to_end(journal)
        if len(entries) > self._size:
            entries.popitem(last=False)

    def is_noop_router(self) -> bool:
        """Return False."""
        return False

    def __repr__(self) -> str:
        return f"<RouteCache of {len(self._entries)} routes>"
