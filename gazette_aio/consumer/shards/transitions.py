"""What a change of a shard's assignment means for the replica that this member runs."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gazette_aio.consumer.allocator.model import Assignment


class Transition(enum.Enum):
    """What becomes of the replica of a shard. There's no way back from primary to standby."""

    NONE = enum.auto()
    """There's no replica, and none is wanted."""
    START = enum.auto()
    """A replica is to be started."""
    UPDATE = enum.auto()
    """The replica goes on, with another spec or assignment."""
    PROMOTE = enum.auto()
    """The replica goes on as the primary."""
    REPLACE = enum.auto()
    """The replica is to be cancelled, and another one started in its place."""
    CANCEL = enum.auto()
    """The replica is to be cancelled."""


def transition(held: Assignment | None, wanted: Assignment | None) -> Transition:
    """Decide what becomes of a replica.

    The allocator moves an assignment by deleting its key and creating one of a lower slot. Any
    other key of a new create revision is of an assignment that ended and was made anew.

    Args:
        held: Assignment of the replica that runs, if there's one.
        wanted: Assignment of this member, if the shard exists and is assigned to it.
    """
    if wanted is None:
        return Transition.NONE if held is None else Transition.CANCEL
    if held is None:
        return Transition.START
    if wanted.slot < held.slot:
        return Transition.UPDATE if wanted.slot else Transition.PROMOTE
    if wanted.create_revision == held.create_revision:
        return Transition.UPDATE
    return Transition.REPLACE
