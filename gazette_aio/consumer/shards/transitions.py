"""Transitions of a replica after its shard's assignment changed."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from gazette_aio.protocol.consumer import ReplicaStatus

if TYPE_CHECKING:
    from gazette_aio.consumer.allocator.model import Assignment


class Transition(enum.Enum):
    """Next step of a shard's replica. A primary never becomes a standby again."""

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


def transition(
    held: Assignment | None, wanted: Assignment | None, *, has_failed: bool = False
) -> Transition:
    """Decide what becomes of a replica.

    The allocator moves an assignment by deleting its key and creating one of a lower slot, with the
    same value. Any other key of a new create revision is of an assignment that ended and was made
    anew. So is one of a lower slot without the failure of the replica: a failed replica that took
    it over would never serve.

    Args:
        held: Assignment of the replica that runs, if there's one.
        wanted: Assignment of this member, if the shard exists and is assigned to it.
        has_failed: Whether the replica that runs has failed.
    """
    if wanted is None:
        return Transition.NONE if held is None else Transition.CANCEL
    if held is None:
        return Transition.START
    if wanted.slot < held.slot:
        if has_failed and wanted.status.code != ReplicaStatus.FAILED:
            return Transition.REPLACE
        return Transition.UPDATE if wanted.slot else Transition.PROMOTE
    if wanted.raw.create_revision == held.raw.create_revision:
        return Transition.UPDATE
    return Transition.REPLACE
