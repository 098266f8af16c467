"""The set of fragments which cover a journal, and how reads are answered from it.

Members are kept in order of begin and end, both strictly ascending, and none lies inside another:
of the members which cover an offset, the one found is that which reaches furthest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

OFFSET_JUMP_AGE_SECONDS = 6 * 3600
"""Age from which a read may jump over a hole to a persisted fragment."""


class Extent(Protocol):
    """What a cover set needs to know about a fragment."""

    @property
    def begin(self) -> int:
        """First offset."""
        ...

    @property
    def end(self) -> int:
        """Offset behind the last byte."""
        ...

    @property
    def mod_time(self) -> int:
        """Modification time in Unix seconds of a persisted fragment, zero of a local one."""
        ...


E = TypeVar("E", bound=Extent)


class CoverSet(Generic[E]):
    """Ordered fragments of a journal, none of which lies inside another."""

    __slots__ = ("_begins", "_ends", "_members")

    def __init__(self, members: Iterable[E] = ()) -> None:
        # Invariant: the three lists run in parallel, and both bounds are strictly ascending.
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._members: list[E] = []
        for member in members:
            self.add(member)

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[E]:
        return iter(self._members)

    def __getitem__(self, index: int) -> E:
        return self._members[index]

    def __repr__(self) -> str:
        spans = ",".join(f"{b}-{e}" for b, e in zip(self._begins, self._ends, strict=True))
        return f"CoverSet({spans})"

    @property
    def begin(self) -> int:
        """First offset of the set, or zero if it's empty."""
        return self._begins[0] if self._begins else 0

    @property
    def end(self) -> int:
        """Offset behind the last byte of the set, or zero if it's empty."""
        return self._ends[-1] if self._ends else 0

    def add(self, member: E) -> bool:
        """Add a fragment, dropping those which lie inside it.

        An equal span is replaced. Returns False, and changes nothing, if the fragment is empty or
        lies inside a present member.
        """
        begin, end = member.begin, member.end
        if begin >= end:
            return False
        first = bisect_left(self._begins, begin)
        if first > 0 and self._ends[first - 1] >= end:
            return False  # A member which begins earlier reaches as far.
        if first < len(self._members) and self._begins[first] == begin and self._ends[first] > end:
            return False
        # Members of index [first, last) begin at or behind `begin`, and end at or before `end`.
        last = bisect_right(self._ends, end, lo=first)
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]
        self._members[first:last] = [member]
        return True

    def members_from(self, offset: int) -> list[E]:
        """Return the members which begin at `offset` or later."""
        return self._members[bisect_left(self._begins, offset) :]

    def lookup(self, offset: int) -> tuple[int, bool]:
        """Return the index of the member which covers `offset` and reaches furthest, and True.

        If none covers it, return the index of the next member behind it (or the length), and False.
        """
        index = bisect_right(self._begins, offset) - 1
        if index >= 0 and self._ends[index] > offset:
            return index, True
        return index + 1, False

    def covers(self, begin: int, end: int) -> bool:
        """Return whether members cover all offsets of [begin, end)."""
        while begin < end:
            index, found = self.lookup(begin)
            if not found:
                return False
            begin = self._ends[index]
        return True

    def without_covered(self, other: CoverSet[E]) -> CoverSet[E]:
        """Return the members of this set which `other` doesn't cover in full."""
        kept: CoverSet[E] = CoverSet()
        for begin, end, member in zip(self._begins, self._ends, self._members, strict=True):
            if not other.covers(begin, end):
                kept.add(member)
        return kept


class Hit(NamedTuple, Generic[E]):
    """A fragment to read from."""

    member: E
    offset: int
    """Offset to read at, which may be behind the one asked for."""


def query(
    cover: CoverSet[E], offset: int, *, begin_mod_time: int, now_seconds: float
) -> tuple[Hit[E] | None, int]:
    """Find the fragment which serves a read.

    Args:
        cover: Fragments of the journal.
        offset: Offset to read at, not negative.
        begin_mod_time: Persisted fragments modified before this Unix time are skipped.
        now_seconds: Current Unix time.

    Returns:
        The fragment and the effective offset, or None if the offset isn't available yet; and the
        effective offset in either case.
    """
    while True:
        index, found = cover.lookup(offset)
        if not found:
            if index == len(cover):
                return None, offset
            member = cover[index]
            # Only what's persisted proves that nothing will ever fill the hole before it.
            if not member.mod_time or (
                index != 0 and member.mod_time >= int(now_seconds) - OFFSET_JUMP_AGE_SECONDS
            ):
                return None, offset
            offset = member.begin
        member = cover[index]
        if member.mod_time and member.mod_time < begin_mod_time:
            offset = member.end
            continue
        return Hit(member, offset), offset
