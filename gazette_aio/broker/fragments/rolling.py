"""Rule of rolling: a journal begins a fragment when an append starts to stream, never within it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import gazette_aio.protocol as pb
    from gazette_aio.broker.fragments.spool import Spool


def roll_offset(
    spool: Spool,
    fragment: pb.JournalSpec.Fragment,
    *,
    roll_to: int | None,
    now_seconds: float,
) -> int | None:
    """Return the offset at which the next fragment begins, or None to extend the present fragment.

    Args:
        spool: Fragment in progress.
        fragment: Fragment part of the journal's spec.
        roll_to: Offset at which the next append must begin, or None.
        now_seconds: Current Unix time.
    """
    length = spool.end - spool.begin
    due = length == 0 or length > fragment.length
    if roll_to and roll_to != spool.begin:
        due = True
    interval = fragment.flush_interval.seconds
    if length and interval > 0:
        # Flush intervals are counted from the Unix epoch.
        first = int(spool.first_append_seconds) // interval
        due = due or first != int(now_seconds) // interval
    if not due:
        return None
    return max(roll_to or 0, spool.end)
