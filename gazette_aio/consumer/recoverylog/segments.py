"""Segments of a recovery log, and their sets.

A set keeps these invariants, so that its segments are one history:

* Ranges of sequence numbers increase and don't overlap. One author wrote each number.
* Offsets of one log rise with sequence numbers.
* A last offset of zero means that it isn't known. Only a suffix of the set may have such.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from gazette_aio.protocol import recoverylog as pb
from gazette_aio.protocol.errors import RecoveryError
from gazette_aio.protocol.validation.recoverylog import validate_segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

READ_THROUGH_BYTES: Final = 1 << 20
"""Longest gap between hinted segments that is read rather than skipped by another RPC."""

_FIRST_SEQ_NO = attrgetter("first_seq_no")


class SegmentError(RecoveryError):
    """Segments that can't be of one history."""


class Segment(NamedTuple):
    """A run of operations of one author in one log."""

    author: int
    first_seq_no: int
    first_offset: int
    """Offset at which the first operation begins, or one before that."""
    first_checksum: int
    """Checksum of the history before the first operation."""
    last_seq_no: int
    last_offset: int
    """Offset at which the last operation ends, or 0 if that isn't known."""
    log: str

    @classmethod
    def from_proto(cls, segment: pb.Segment, log: str) -> Segment:
        """Return a segment of hints, of which `log` is the log unless it names another."""
        return cls(
            segment.author,
            segment.first_seq_no,
            segment.first_offset,
            segment.first_checksum,
            segment.last_seq_no,
            segment.last_offset,
            segment.log or log,
        )

    def __str__(self) -> str:
        end = f" to {self.last_offset}" if self.last_offset else ""
        return (
            f"operations {self.first_seq_no} to {self.last_seq_no} of author {self.author}, "
            f"from offset {self.first_offset}{end} of {self.log}"
        )

    def to_proto(self, log: str) -> pb.Segment:
        """Return the segment as one of hints of `log`."""
        return pb.Segment(
            author=self.author,
            first_seq_no=self.first_seq_no,
            first_offset=self.first_offset,
            first_checksum=self.first_checksum,
            last_seq_no=self.last_seq_no,
            last_offset=self.last_offset,
            log="" if self.log == log else self.log,
        )


def joined(segments: list[Segment], limit: int) -> list[Segment]:
    """Return segments of a file, of which those with the smallest gaps are joined.

    Playback reads through the gap within a segment. Segments of different authors or logs aren't
    joined, nor are those whose offsets aren't known.

    Args:
        segments: Segments by ascending sequence number.
        limit: Number of segments beyond which they are joined, as far as that's possible.
    """
    segments = list(segments)
    while len(segments) > limit:
        gaps = [
            (gap, index)
            for index in range(len(segments) - 1)
            if (gap := gap_between(*segments[index : index + 2])) is not None
        ]
        if not gaps:
            break
        _, index = min(gaps)
        segments[index : index + 2] = [join(*segments[index : index + 2])]
    return segments


def gap_between(first: Segment, second: Segment) -> int | None:
    """Return the bytes between two successive segments, or None if they can't be joined."""
    if first.author != second.author or first.log != second.log or not first.last_offset:
        return None
    return max(second.first_offset - first.last_offset, 0)


def join(first: Segment, second: Segment) -> Segment:
    """Return one segment from the beginning of the first one to the end of the second one."""
    return first._replace(last_seq_no=second.last_seq_no, last_offset=second.last_offset)


def without_late_gaps(nodes: dict[int, list[Segment]]) -> dict[int, list[Segment]]:
    """Return segments of files, which aren't split after the creation of the newest file.

    Until they have met the newest hinted file, players pass over files that aren't hinted. After
    it, other implementations take each file for a live one, and must read what ends it.

    Args:
        nodes: Segments by fnode.
    """
    if not nodes:
        return nodes
    newest = max(nodes)
    nodes = {fnode: list(segments) for fnode, segments in nodes.items()}
    places = sorted(
        (segment.first_seq_no, fnode, index)
        for fnode, segments in nodes.items()
        for index, segment in enumerate(segments)
    )
    latest: tuple[int, int] | None = None
    whole_to = 0  # Up to here, some file would have one segment, if it weren't split.
    for first_seq_no, fnode, index in places:
        segment = nodes[fnode][index]
        is_within = first_seq_no <= whole_to
        following = nodes[fnode][index + 1 : index + 2]
        if following and gap_between(segment, *following) is not None:
            whole_to = max(whole_to, following[0].first_seq_no)
        if segment.last_seq_no < newest:
            continue
        if latest is not None:
            before = nodes[latest[0]][latest[1]]
            if segment.last_seq_no <= before.last_seq_no:
                continue
            is_gap = first_seq_no > before.last_seq_no + 1
            if is_gap and is_within and gap_between(before, segment) is not None:
                nodes[latest[0]][latest[1]] = before._replace(
                    last_seq_no=first_seq_no - 1, last_offset=segment.first_offset
                )
        latest = fnode, index
    return nodes


class SegmentSet:
    """Segments of one history, by ascending sequence number.

    Args:
        segments: Segments to add, in any order.

    Raises:
        ValidationError: A segment is invalid.
        SegmentError: The segments can't be of one history.
    """

    __slots__ = ("_segments",)

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self._segments: list[Segment] = []
        for segment in segments:
            self.add(segment)

    def add(self, segment: Segment) -> None:
        """Add a segment, merged with those that it overlaps or continues.

        Raises:
            ValidationError: The segment is invalid.
            SegmentError: It contradicts another segment. The set is as before.
        """
        validate_segment(segment)
        segments = self._segments
        begin = end = bisect_left(segments, segment.first_seq_no, key=_FIRST_SEQ_NO)
        if begin and (merged := _merged(segments[begin - 1], segment)) is not None:
            segment = merged
            begin -= 1
        while end < len(segments):
            merged = _merged(segment, segments[end])
            if merged is None:
                break
            segment = merged
            end += 1
        segments[begin:end] = [segment]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    def __repr__(self) -> str:
        return f"SegmentSet({self._segments!r})"


def _merged(first: Segment, second: Segment) -> Segment | None:
    """Return the union of two segments in either order, or None if they have no common edge.

    Raises:
        SegmentError: They can't be of one history.
    """
    if (first.first_seq_no, -first.last_seq_no) > (second.first_seq_no, -second.last_seq_no):
        first, second = second, first
    if conflict := _conflict(first, second):
        raise SegmentError(f"{conflict}: {first} vs {second}")
    gap = second.first_seq_no - first.last_seq_no
    same_source = first.author == second.author and first.log == second.log
    if gap > 1 or (gap == 1 and not same_source):
        return None
    if first.author != second.author:
        raise SegmentError(f"expected Segment Author equality: {first} vs {second}")
    if first.log != second.log:
        raise SegmentError(f"expected Segment Log equality: {first} vs {second}")
    merged = first
    if first.first_seq_no == second.first_seq_no and first.first_offset < second.first_offset:
        # Offsets are lower bounds, of which the greater one is closer.
        merged = merged._replace(first_offset=second.first_offset)
    if first.last_seq_no < second.last_seq_no:
        return merged._replace(last_seq_no=second.last_seq_no, last_offset=second.last_offset)
    if first.last_seq_no == second.last_seq_no and not first.last_offset:
        return merged._replace(last_offset=second.last_offset)
    return merged


def _conflict(first: Segment, second: Segment) -> str | None:
    """Return why segments can't be of one history, whether or not they overlap."""
    same_log = first.log == second.log
    if first.first_seq_no < second.first_seq_no:
        if same_log and first.first_offset > second.first_offset:
            return "expected monotonic FirstOffset"
        if not first.last_offset and second.last_offset:
            return "expected preceding Segment to also include LastOffset"
    if not first.last_offset and not same_log:
        return "Segment cannot use a different log where preceding Segment.LastOffset is zero"
    if same_log and (
        (first.last_seq_no <= second.last_seq_no and 0 != second.last_offset < first.last_offset)
        or (first.last_seq_no >= second.last_seq_no and 0 != first.last_offset < second.last_offset)
    ):
        return "expected monotonic LastOffset"
    if first.first_seq_no == second.first_seq_no and first.first_checksum != second.first_checksum:
        return "expected FirstChecksum equality"
    return None
