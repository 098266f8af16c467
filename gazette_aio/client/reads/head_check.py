"""Check whether a read waits at an offset beyond the write head of its journal.

Such an offset is of a journal that was deleted and created again, or restored with less content.
Reading from it would wait in silence, and then begin amid a message.

Rules:

* Wire: a broker answers nothing to a blocking read at the write head, nor to one beyond. So a read
  that has been silent for a while asks for the head, once: the head at or beyond the offset, as any
  broker knows it, ends the check.
* A lower head counts only from the primary. Other replicas learn of commits later.
* The primary has to repeat it for `CONFIRM_SECONDS`, after it has listed the fragment stores. A new
  primary knows only what its disk has, until it has listed the stores and the other replicas have
  told it their heads, which an append at each change of assignments brings about.
* Another primary begins anew. No answer decides nothing.
"""

from __future__ import annotations

from typing import Final

import gazette_aio.protocol as pb

SILENT_SECONDS: Final = 2.0
"""Least seconds without an answer after which a blocking read asks for the write head; up to three
times as many, by chance."""

LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at the write head."""

CONFIRM_SECONDS: Final = 5.0
"""Seconds for which the primary has to say that the write head is before the offset."""


class HeadCheck:
    """Looks at the write head of a journal, and what they amount to.

    Args:
        due: Time of the first look.
    """

    def __init__(self, due: float) -> None:
        self.due: float = due
        """Time of the next look."""
        self.header: pb.Header | None = None
        """Header of the latest answer that was before the offset: the next look asks its primary,
        after it has listed the stores."""
        self._since: tuple[pb.ProcessSpec.ID, float] | None = None

    def note(self, answer: pb.ReadResponse | None, offset: int, now: float) -> bool | None:
        """Note a look.

        Args:
            answer: The answer of a broker; None if there was none.
            offset: Offset at which the read waits.
            now: The time.

        Returns:
            Whether the offset is beyond the write head, or None as long as that's undecided.
        """
        self.due = now + LOOK_SECONDS
        if answer is None:
            return None
        if answer.write_head >= offset:
            return False
        is_first, self.header = self.header is None, answer.header
        route, process = answer.header.route, answer.header.process_id
        if not 0 <= route.primary < len(route.members) or route.members[route.primary] != process:
            return None
        if self._since is None or self._since[0] != process:
            self._since = process, now
        return (not is_first and now - self._since[1] >= CONFIRM_SECONDS) or None


def beyond_head(journal: str, offset: int, write_head: int) -> pb.OffsetBeyondHeadError:
    """Return the error of a read beyond the write head."""
    return pb.OffsetBeyondHeadError(
        f"offset {offset} is beyond the write head {write_head} of journal {journal}, which was "
        "deleted and created again, or restored with less content: read from an offset up to "
        f"{write_head}, and reset the checkpoint that has the offset",
        journal=journal,
        offset=offset,
        write_head=write_head,
    )
