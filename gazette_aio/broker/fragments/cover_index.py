"""Cover set of a journal's fragments, and the query that answers reads.

Members are kept in order of begin and end, both strictly ascending, and none lies inside another. A
look-up finds the member that covers an offset and reaches furthest.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from copy import copy
from itertools import compress, count, repeat
from operator import le, ne
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, Self, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

OFFSET_JUMP_AGE_SECONDS = 6 * 3600
"""Age from which a read may jump over a hole to a persisted fragment."""

_RUN_MEMBERS = 4096


class Extent(Protocol):
    """Extent of a fragment. Not changed while it's in a set."""

    begin: int
    """First offset."""
    end: int
    """Offset after the last byte."""
    mod_time: int
    """Modification time in Unix seconds of a persisted fragment, zero of a local one."""


E = TypeVar("E", bound=Extent)


class CoverSet(Generic[E]):
    """Ordered fragments of a journal, none of which lies inside another.

    Numbers are kept in columns, and subclasses may pack members: a set of very many fragments is
    then made of few objects, and dropping it takes no time.
    """

    __slots__ = ("_begins", "_ends", "_members", "_mod_times")

    def __init__(self, members: Iterable[E] = ()) -> None:
        # Invariant: the four columns run in parallel, and both bounds are strictly ascending.
        self._begins = array("q")
        self._ends = array("q")
        self._mod_times = array("q")
        self._members: list[object] = []
        for member in members:
            self.add(member)

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[E]:
        return map(self.__getitem__, range(len(self._members)))

    def __getitem__(self, index: int) -> E:
        return cast("E", self._members[index])

    def __repr__(self) -> str:
        spans = [f"{b}-{e}" for b, e in zip(self._begins[:8], self._ends[:8], strict=True)]
        rest = f",… {len(self)} in all" if len(self) > len(spans) else ""
        return f"{type(self).__name__}({','.join(spans)}{rest})"

    @property
    def begin(self) -> int:
        """First offset of the set, or zero if it's empty."""
        return self._begins[0] if self._begins else 0

    @property
    def end(self) -> int:
        """Offset after the last byte of the set, or zero if it's empty."""
        return self._ends[-1] if self._ends else 0

    @property
    def last_mod_time(self) -> int:
        """Modification time of the last member, zero if it's local or there's none."""
        return self._mod_times[-1] if self._mod_times else 0

    def extent(self, index: int) -> tuple[int, int, int]:
        """Return begin, end and modification time of a member."""
        return self._begins[index], self._ends[index], self._mod_times[index]

    def add(self, member: E) -> bool:
        """Add a fragment, and drop the members inside it.

        An equal span is replaced. Returns False, and changes nothing, if the fragment is empty or
        lies inside a present member.
        """
        return self._insert(member.begin, member.end, member.mod_time, member)

    def _insert(self, begin: int, end: int, mod_time: int, member: object) -> bool:
        if begin >= end:
            return False
        first = bisect_left(self._begins, begin)
        if first > 0 and self._ends[first - 1] >= end:
            return False  # A member which begins earlier reaches as far.
        if first < len(self._members) and self._begins[first] == begin and self._ends[first] > end:
            return False
        # Members of index [first, last) begin at or after `begin`, and end at or before `end`.
        last = bisect_right(self._ends, end, lo=first)
        self._begins[first:last] = array("q", (begin,))
        self._ends[first:last] = array("q", (end,))
        self._mod_times[first:last] = array("q", (mod_time,))
        self._members[first:last] = [member]
        return True

    def drop_inside(self, begin: int, end: int) -> None:
        """Drop the members which lie inside [begin, end)."""
        first = bisect_left(self._begins, begin)
        last = bisect_right(self._ends, end, lo=first)
        del self._begins[first:last]
        del self._ends[first:last]
        del self._mod_times[first:last]
        del self._members[first:last]

    def members_from(self, offset: int) -> Self:
        """Return a new set of the members that begin at `offset` or later."""
        first = bisect_left(self._begins, offset)
        found = copy(self)
        found._begins = self._begins[first:]
        found._ends = self._ends[first:]
        found._mod_times = self._mod_times[first:]
        found._members = self._members[first:]
        return found

    def lookup(self, offset: int) -> tuple[int, bool]:
        """Return the index of the member which covers `offset` and reaches furthest, and True.

        If no member covers `offset`, return the index of the next member (or the length), and
        False.
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
        for index, (begin, end) in enumerate(zip(self._begins, self._ends, strict=True)):
            if not other.covers(begin, end):
                kept.add(self[index])
        return kept

    def run_modified_before(self, index: int, time: int) -> int:
        """Return the index after a run of persisted members modified before `time`.

        The run begins at `index` with such a member, and each member begins where the previous
        member ends. The length of the run may be bounded.
        """
        stop = min(len(self._members), index + _RUN_MEMBERS)
        mod_times = self._mod_times[index:stop]
        stop = next(compress(count(index), map(le, repeat(time), mod_times)), stop)
        if 0 in mod_times:  # Those which are local are never skipped.
            stop = min(stop, index + mod_times.index(0))
        gaps = map(ne, self._begins[index + 1 : stop], self._ends[index : stop - 1])
        return next(compress(count(index + 1), gaps), stop)


class Hit(NamedTuple, Generic[E]):
    """A fragment to read from."""

    member: E
    offset: int
    """Offset to read at, which may be greater than the one asked for."""


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
            begin, _, mod_time = cover.extent(index)
            # Only a persisted fragment proves that nothing will fill the hole before it.
            if not mod_time or (
                index != 0 and mod_time >= int(now_seconds) - OFFSET_JUMP_AGE_SECONDS
            ):
                return None, offset
            offset = begin
        _, _, mod_time = cover.extent(index)
        if mod_time and mod_time < begin_mod_time:
            # One by one, very many fragments would take too long.
            _, offset, _ = cover.extent(cover.run_modified_before(index, begin_mod_time) - 1)
            continue
        return Hit(cover[index], offset), offset
