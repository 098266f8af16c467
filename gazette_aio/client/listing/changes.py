"""Differences between two listings."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import Turns


class JournalChange(NamedTuple):
    """A journal whose specification has changed."""

    before: pb.ListResponse.Journal
    after: pb.ListResponse.Journal


@dataclasses.dataclass(frozen=True, slots=True)
class ListChanges:
    """Differences between a listing and the one before it. Its messages must not be modified.

    Its journals are copies, which don't keep a whole listing in memory, except at the first step.
    """

    listing: pb.ListResponse
    """The newer listing."""
    added: tuple[pb.ListResponse.Journal, ...] = ()
    """Journals that weren't listed before, or were deleted and created again."""
    removed: tuple[pb.ListResponse.Journal, ...] = ()
    """Journals that aren't listed any more, or were deleted and created again."""
    changed: tuple[JournalChange, ...] = ()
    """Journals whose specification was applied."""

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.added or self.removed or self.changed)


async def changes_between(before: pb.ListResponse | None, after: pb.ListResponse) -> ListChanges:
    """Return the differences between two listings of one selector, in the order listed.

    Journals are the same if their creation revisions are equal, and have changed if their
    modification revisions differ. Routes are ignored.

    Args:
        before: The older listing; None for none.
        after: The newer listing.

    Cancellation: safe.
    """
    turns = Turns()
    listed = before.journals if before is not None else ()
    # Indices rather than journals: very many objects at once trigger the garbage collector.
    known: dict[str, int] = {}
    for number, journal in enumerate(listed):
        known[journal.spec.name] = number
        await turns.rest()
    added: list[pb.ListResponse.Journal] = []
    removed: list[pb.ListResponse.Journal] = []
    changed: list[JournalChange] = []
    for journal in after.journals:
        place = known.pop(journal.spec.name, None)
        older = None if place is None else listed[place]
        if older is None:
            added.append(journal if before is None else _copy(journal))
        elif older.create_revision != journal.create_revision:
            removed.append(_copy(older))
            added.append(_copy(journal))
        # Another cluster may have equal revisions by chance.
        elif older.mod_revision != journal.mod_revision or older.spec != journal.spec:
            changed.append(JournalChange(_copy(older), _copy(journal)))
        await turns.rest()
    for place in known.values():
        removed.append(_copy(listed[place]))
        await turns.rest()
    return ListChanges(after, tuple(added), tuple(removed), tuple(changed))


def _copy(journal: pb.ListResponse.Journal) -> pb.ListResponse.Journal:
    # A part of a message keeps the whole message in memory.
    copy = pb.ListResponse.Journal()
    copy.CopyFrom(journal)
    return copy


async def lists_the_same(one: pb.ListResponse | None, other: pb.ListResponse) -> bool:
    """Return whether two listings have the same journals, with equal revisions and routes.

    Their headers are ignored.

    Cancellation: safe.
    """
    turns = Turns()
    if one is None or len(one.journals) != len(other.journals):
        return False
    for left, right in zip(one.journals, other.journals, strict=True):
        if left != right:
            return False
        await turns.rest()
    return True
