"""Files of a history that have a path, and hints of them."""

from __future__ import annotations

from typing import Final, NamedTuple

from gazette_aio.consumer.recoverylog.segments import Segment, joined, without_late_gaps
from gazette_aio.protocol.recoverylog import FSMHints

SPLIT_GAP_BYTES: Final = 4 << 20
"""Bytes between two operations of a file from which a segment ends at the first of them."""

MAX_SEGMENTS: Final = 64
"""Segments of a file beyond which those with the smallest gaps between them are joined."""


class LiveNode:
    """A file that has a path, and the operations that made it."""

    __slots__ = ("_earlier", "_last_offset", "_last_seq_no", "_newest", "links")

    def __init__(self, path: str) -> None:
        self.links: set[str] = {path}
        """Its paths."""
        self._earlier: list[Segment] = []
        """Segments before the newest one. The list isn't modified, but replaced."""
        self._newest: Segment | None = None
        """The newest segment, as of its first operation."""
        self._last_seq_no = 0
        self._last_offset = 0

    @property
    def segments(self) -> list[Segment]:
        """Runs of its operations, each of one author in one log, without a long gap.

        Playback skips gaps of more than `SPLIT_GAP_BYTES`.
        """
        newest = self._newest
        if newest is None:
            return self._earlier
        closed = Segment(*newest[:4], self._last_seq_no, self._last_offset, newest.log)
        return [*self._earlier, closed]

    def copy(self) -> LiveNode:
        """Return the file as it is now."""
        node = LiveNode.__new__(LiveNode)
        node.links = set(self.links)
        node._earlier, node._newest = self._earlier, self._newest
        node._last_seq_no, node._last_offset = self._last_seq_no, self._last_offset
        return node

    def extend(  # noqa: PLR0917 - Hot: keywords take time.
        self,
        author: int,
        seq_no: int,
        checksum: int,
        first_offset: int,
        last_offset: int,
        log: str,
    ) -> None:
        """Add an operation to the segments."""
        newest = self._newest
        if (
            newest is None
            or newest.author != author
            or newest.log != log
            # The end of operations from hints may be unknown, and is 0 then.
            or first_offset - (self._last_offset or first_offset) > SPLIT_GAP_BYTES
        ):
            if newest is not None:
                self._earlier = joined(self.segments, MAX_SEGMENTS - 1)
            self._newest = Segment(author, seq_no, first_offset, checksum, seq_no, last_offset, log)
        self._last_seq_no = seq_no
        self._last_offset = last_offset


class LiveNodes(NamedTuple):
    """Live files and properties of a history, by which playback finds them."""

    nodes: dict[int, LiveNode]
    """The files by fnode, ascending."""
    properties: dict[str, str]
    """Contents of small files that are kept in hints, by path."""

    def build_hints(self, log: str) -> FSMHints:
        """Return hints by which another one can follow the history.

        Args:
            log: The log that the hints are for.
        """
        hints = FSMHints(log=log)
        segments = {fnode: node.segments for fnode, node in self.nodes.items()}
        for fnode, of_file in without_late_gaps(segments).items():
            node = hints.live_nodes.add(fnode=fnode)
            node.segments.extend(segment.to_proto(log) for segment in of_file)
        for path, content in sorted(self.properties.items()):
            hints.properties.add(path=path, content=content)
        return hints
