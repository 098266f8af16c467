"""Cover of a journal by its fragments, and the query that answers reads.

Fragments are kept in order of begin and end, both strictly ascending, and none lies inside another.
A look-up finds the fragment that covers an offset and reaches furthest.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from copy import copy
from itertools import compress, count, repeat
from operator import le, ne
from typing import TYPE_CHECKING, Self

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gazette_aio.broker.fragments.local_fragment import ContentFile

OFFSET_JUMP_AGE_SECONDS = 6 * 3600
"""Age from which a read may jump over a hole to a persisted fragment."""

_RUN_MEMBERS = 4096


class IndexEntry:
    """Fragment of the index: local, with its content file, or persisted in a store.

    Args:
        fragment: The fragment; not modified afterwards.
        content: Its content file, if it's local.
    """

    __slots__ = ("begin", "content", "end", "fragment", "mod_time")

    def __init__(self, fragment: pb.Fragment, content: ContentFile | None = None) -> None:
        self.fragment: pb.Fragment = fragment
        self.content: ContentFile | None = content
        self.begin: int = fragment.begin
        self.end: int = fragment.end
        self.mod_time: int = fragment.mod_time

    def __repr__(self) -> str:
        place = "local" if self.content else self.fragment.backing_store
        return f"<IndexEntry {self.begin}-{self.end} {place}>"


class FragmentCover:
    """Ordered fragments of a journal, none of which lies inside another.

    Numbers are kept in columns, and listed fragments stay packed until their first use: very many
    fragments are few objects, and dropping them takes no time.
    """

    __slots__ = ("_begins", "_ends", "_journal", "_members", "_mod_times", "_stores")

    def __init__(self, journal: str = "") -> None:
        # Invariant: the four columns run in parallel, and both bounds are strictly ascending.
        self._begins = array("q")
        self._ends = array("q")
        self._mod_times = array("q")
        self._members: list[IndexEntry | bytes] = []
        self._journal = journal
        self._stores: list[str] = []

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[IndexEntry]:
        return map(self.__getitem__, range(len(self._members)))

    def __getitem__(self, index: int) -> IndexEntry:
        member = self._members[index]
        if isinstance(member, IndexEntry):
            return member
        begin, end, mod_time = self.extent(index)
        fragment = pb.Fragment(
            journal=self._journal,
            begin=begin,
            end=end,
            sum=pb.sum_from_digest(member[:20]),
            compression_codec=pb.CompressionCodec.ValueType(member[20]),
            backing_store=self._stores[int.from_bytes(member[21:25])],
            mod_time=mod_time,
            path_postfix=member[25:].decode(),
        )
        return IndexEntry(fragment)

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

    def begin_store(self, url: str) -> int:
        """Begin the listed fragments of a store, and return the store's number for `pack`."""
        self._stores.append(url)
        return len(self._stores) - 1

    def add(self, entry: IndexEntry) -> bool:
        """Add a fragment, and drop the fragments inside it.

        An equal span is replaced. Returns False, and changes nothing, if the fragment is empty or
        lies inside a present one.
        """
        return self.insert(entry.begin, entry.end, entry.mod_time, entry)

    def insert(self, begin: int, end: int, mod_time: int, member: IndexEntry | bytes) -> bool:
        """Add a fragment as `add` does; a fragment of a listing in the form of `pack`."""
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

    def without_covered(self, other: FragmentCover) -> FragmentCover:
        """Return the members of this set which `other` doesn't cover in full."""
        kept = FragmentCover(self._journal)
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


def pack(fragment: pb.Fragment, store: int) -> bytes:
    """Return the packed form of a listed fragment: all fields except its extent."""
    head = bytes((fragment.compression_codec,)) + store.to_bytes(4)
    return pb.sum_to_digest(fragment.sum) + head + fragment.path_postfix.encode()


def query(
    cover: FragmentCover, offset: int, *, begin_mod_time: int, now_seconds: float
) -> tuple[IndexEntry | None, int]:
    """Find the fragment which serves a read.

    Args:
        cover: Fragments of the journal.
        offset: Offset to read at, not negative.
        begin_mod_time: Persisted fragments modified before this Unix time are skipped.
        now_seconds: Current Unix time.

    Returns:
        The fragment, or None if the offset isn't available yet; and the effective offset, which may
        be greater than the one asked for.
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
        return cover[index], offset
