"""What differs between two listings."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from typing import Final, NamedTuple, TypeVar

import gazette_aio.protocol as pb

_SLICE_JOURNALS: Final = 256
"""Journals which are compared in about half a millisecond."""

T = TypeVar("T")

Slices = Generator[None, None, T]
"""Work which yields time and again, so that others have their turn, and returns its result."""


class JournalChange(NamedTuple):
    """A journal whose specification changed."""

    before: pb.ListResponse.Journal
    after: pb.ListResponse.Journal


@dataclasses.dataclass(frozen=True, slots=True)
class ListChanges:
    """What differs between a listing and the one before it. Its messages must not be modified.

    Journals which are kept don't keep a whole listing in memory, but for those of a first step.
    """

    listing: pb.ListResponse
    """The newer listing."""
    added: tuple[pb.ListResponse.Journal, ...] = ()
    """Journals which weren't listed before, or were created anew since."""
    removed: tuple[pb.ListResponse.Journal, ...] = ()
    """Journals which aren't listed any more, or were created anew since."""
    changed: tuple[JournalChange, ...] = ()
    """Journals which were applied since."""

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.added or self.removed or self.changed)


def changes_between(before: pb.ListResponse | None, after: pb.ListResponse) -> Slices[ListChanges]:
    """Find what differs between two listings of one selector, each part in the order listed.

    Journals are the same if their creation revisions are, and have changed if their modification
    revisions did. Routes don't count.

    Args:
        before: The older listing; None if there was none.
        after: The newer one.
    """
    listed = before.journals if before is not None else ()
    # Places rather than journals: very many objects at once would have the garbage collector run.
    known: dict[str, int] = {}
    for number, journal in enumerate(listed):
        known[journal.spec.name] = number
        if number % _SLICE_JOURNALS == 0:
            yield
    added: list[pb.ListResponse.Journal] = []
    removed: list[pb.ListResponse.Journal] = []
    changed: list[JournalChange] = []
    for number, journal in enumerate(after.journals):
        place = known.pop(journal.spec.name, None)
        older = None if place is None else listed[place]
        if older is None:
            added.append(journal if before is None else _copy(journal))
        elif older.create_revision != journal.create_revision:
            removed.append(_copy(older))
            added.append(_copy(journal))
        # Revisions of another cluster may happen to be equal.
        elif older.mod_revision != journal.mod_revision or older.spec != journal.spec:
            changed.append(JournalChange(_copy(older), _copy(journal)))
        if number % _SLICE_JOURNALS == 0:
            yield
    for number, place in enumerate(known.values()):
        removed.append(_copy(listed[place]))
        if number % _SLICE_JOURNALS == 0:
            yield
    return ListChanges(after, tuple(added), tuple(removed), tuple(changed))


def _copy(journal: pb.ListResponse.Journal) -> pb.ListResponse.Journal:
    # A part of a message keeps all of that in memory.
    copy = pb.ListResponse.Journal()
    copy.CopyFrom(journal)
    return copy


def lists_the_same(one: pb.ListResponse | None, other: pb.ListResponse) -> Slices[bool]:
    """Find out whether two listings are of the same journals, with the same revisions and routes.

    Their headers don't count.
    """
    if one is None or len(one.journals) != len(other.journals):
        return False
    for number, (left, right) in enumerate(zip(one.journals, other.journals, strict=True)):
        if left != right:
            return False
        if number % _SLICE_JOURNALS == 0:
            yield
    return True
