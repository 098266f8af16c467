"""Which member of a route an RPC is for.

In order of weight, a member is preferred which isn't known to be unreachable, is in the zone of
this process, and has a connection or is about to have one. Among equals chance decides.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    import gazette_aio.protocol as pb


class Mode(enum.Enum):
    """Which member serves an RPC."""

    PRIMARY = "primary"
    """The primary of the journal."""
    REPLICA = "replica"
    """Any broker of the journal."""
    DEFAULT = "default"
    """Whoever answers at the address of the client."""


class MemberState(enum.IntEnum):
    """State of the connection to a member, from the worst to the best."""

    FAILED = 0
    """It can't be reached, and hasn't been since."""
    IDLE = 1
    """Nobody tried."""
    CONNECTING = 2
    READY = 3


_SAME_ZONE: Final = len(MemberState)

_LONGEST_ENDPOINT: Final = 1024


class Members(NamedTuple):
    """What there is to choose from in a route."""

    primary: str | None
    """Endpoint of the primary, if there is one."""
    replicas: tuple[tuple[str, str], ...]
    """Zone and endpoint of each member."""


def members_of(route: pb.Route) -> Members:
    """Return the members of a route which have endpoints. It may be inconsistent."""
    # Wire: there may be fewer endpoints than members, empty ones, and ones of any length.
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
    members: Members,
    mode: Mode,
    zone: str,
    states: Callable[[str], MemberState | None],
    chance: Callable[[], float] = float,
) -> str | None:
    """Return the endpoint of the member to use, or None for the address of the client.

    Args:
        members: Members of the route of the journal.
        mode: Which member is asked for.
        zone: Zone of this process.
        states: Returns the state of the connection to an endpoint, or None if it's out of the
            question.
        chance: Source of numbers within [0, 1), to choose among equals.
    """
    if mode is Mode.PRIMARY:
        return members.primary  # However it fares, nobody else will do.
    if mode is Mode.DEFAULT:
        return None

    best: list[str] = []
    best_rank = 0
    for member_zone, endpoint in members.replicas:
        if not (state := states(endpoint)):
            continue
        rank = state + _SAME_ZONE if member_zone == zone else state
        if rank > best_rank:
            best, best_rank = [endpoint], rank
        elif rank == best_rank:
            best.append(endpoint)
    if len(best) > 1:
        return best[int(chance() * len(best))]
    return best[0] if best else None
