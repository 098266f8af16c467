"""Choice of the member of a route that serves an RPC.

Preferred are, by weight: members that aren't known to be unreachable, members in the zone of this
process, and members with a connection, or one that is being made. Chance decides among equals.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import gazette_aio.protocol as pb


class Mode(enum.Enum):
    """Member that serves an RPC."""

    PRIMARY = "primary"
    """The primary of the journal."""
    REPLICA = "replica"
    """Any broker of the journal."""


class MemberState(enum.IntEnum):
    """State of the connection to a member, from the worst to the best."""

    FAILED = 0
    """The last attempt to connect failed."""
    IDLE = 1
    """There was no attempt to connect."""
    CONNECTING = 2
    READY = 3


_SAME_ZONE: Final = len(MemberState)

_LONGEST_ENDPOINT: Final = 1024


class Members(NamedTuple):
    """Members of a route that have endpoints."""

    primary: str | None
    """Endpoint of the primary, if there is one."""
    replicas: tuple[tuple[str, str], ...]
    """Zone and endpoint of each member."""


def members_of(route: pb.Route) -> Members:
    """Return the members of a route that have endpoints. The route may be inconsistent."""
    # Wire: there may be fewer endpoints than members, empty endpoints, and endpoints of any length.
    endpoints = tuple(
        endpoint if len(endpoint) <= _LONGEST_ENDPOINT else ""
        for _, endpoint in zip(route.members, route.endpoints, strict=False)
    )
    return Members(
        endpoints[route.primary] or None if 0 <= route.primary < len(endpoints) else None,
        tuple(
            (member.zone, endpoint)
            for member, endpoint in zip(route.members, endpoints, strict=False)
            if endpoint
        ),
    )


def pick(
    replicas: Iterable[tuple[str, str, MemberState | None]],
    zone: str,
    chance: Callable[[], float] = float,
) -> str | None:
    """Return the endpoint of the member to use, or None for the address of the client.

    Args:
        replicas: Zone and endpoint of each member, and the state of the connection to it, or None
            if none is allowed.
        zone: Zone of this process.
        chance: Source of numbers within [0, 1), to choose among equals.
    """
    best: list[str] = []
    best_rank = 0
    for member_zone, endpoint, state in replicas:
        if not state:
            continue
        rank = state + _SAME_ZONE if member_zone == zone else state
        if rank > best_rank:
            best, best_rank = [endpoint], rank
        elif rank == best_rank:
            best.append(endpoint)
    if len(best) > 1:
        return best[int(chance() * len(best))]
    return best[0] if best else None
