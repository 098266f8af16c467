"""Validation rules of hints of recovery logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gazette_aio.protocol.errors import ValidationError, within
from gazette_aio.protocol.journal import validate_journal

if TYPE_CHECKING:
    from gazette_aio.protocol._generated import recoverylog_pb2 as pb


class AnySegment(Protocol):
    """A `Segment`, or an object with its fields."""

    @property
    def author(self) -> int:
        """Author of the operations."""
        ...

    @property
    def first_seq_no(self) -> int:
        """Sequence number of the first operation."""
        ...

    @property
    def first_offset(self) -> int:
        """Offset at which the first operation begins."""
        ...

    @property
    def last_seq_no(self) -> int:
        """Sequence number of the last operation."""
        ...

    @property
    def last_offset(self) -> int:
        """Offset at which the last operation ends, or 0."""
        ...

    @property
    def log(self) -> str:
        """The log."""
        ...


def validate_segment(segment: AnySegment) -> None:
    """Check a segment of a recovery log.

    Raises:
        ValidationError: The segment is invalid.
    """
    _validate_range(segment)
    within("Log", validate_journal, segment.log)


def _validate_range(segment: AnySegment) -> None:
    if not segment.author:
        raise ValidationError("Author is zero")
    if segment.first_seq_no <= 0:
        raise ValidationError("FirstSeqNo <= 0")
    if segment.first_offset < 0:
        raise ValidationError("FirstOffset < 0")
    if segment.last_seq_no < segment.first_seq_no:
        raise ValidationError("LastSeqNo < segment.FirstSeqNo")
    if segment.last_offset and segment.last_offset <= segment.first_offset:
        raise ValidationError("LastOffset <= segment.FirstOffset")


def validate_hints(hints: pb.FSMHints) -> None:
    """Check each segment of hints, but not whether the segments form one history.

    Raises:
        ValidationError: A segment is invalid.
    """
    for node in hints.live_nodes:
        for segment in node.segments:
            if segment.log and segment.log == hints.log:
                raise ValidationError("contained segment.Log duplicates FSMHints.Log")
            within("Segment", _validate_range, segment)
            with_log = segment.log or hints.log
            within("Segment", within, "Log", validate_journal, with_log)
