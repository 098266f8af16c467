"""Parts of recovery logs that hints leave to be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gazette_aio.consumer.recoverylog.segments import READ_THROUGH_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_aio.consumer.recoverylog.segments import Segment


class LogRange(NamedTuple):
    """Part of a log to read."""

    log: str
    begin: int
    end: int
    """Offset to read to, or 0 if that isn't known."""


def ranges_of(segments: Sequence[Segment], hints_log: str, log: str, offset: int) -> list[LogRange]:
    """Return the parts of logs that hold segments, and what follows the last one.

    Args:
        segments: Hinted segments to come.
        hints_log: Log of the hints.
        log: Log being read.
        offset: Offset of the log to read next.
    """
    ranges: list[LogRange] = []
    for segment in segments:
        begin = max(segment.first_offset, offset if segment.log == log else 0)
        last = ranges[-1] if ranges else None
        is_near = last is not None and (
            last.log == segment.log and (not last.end or begin <= last.end + READ_THROUGH_BYTES)
        )
        if last is not None and is_near:
            end = max(last.end, segment.last_offset) if segment.last_offset else 0
            ranges[-1] = last._replace(end=end)
            continue
        ranges.append(LogRange(segment.log, begin, segment.last_offset))
    if not ranges:
        return [LogRange(hints_log, offset, 0)]
    # What follows the last segment is read as well.
    ranges[-1] = ranges[-1]._replace(end=0)
    return ranges
