"""State machine of a recovery log: which operations extend its history, and what they leave.

An operation is applied if it has the next sequence number and the checksum of all that was applied
before. With hints, it must also be of the hinted author, and history jumps from the end of a hinted
segment to the beginning of the next one: what lies between concerns no live file.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING, ClassVar, Final

from gazette_aio.consumer.recoverylog.hints import live_log_segments
from gazette_aio.consumer.recoverylog.live_nodes import LiveNode, LiveNodes
from gazette_aio.consumer.recoverylog.operations import next_checksum
from gazette_aio.protocol.errors import RecoveryError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gazette_aio.consumer.recoverylog.segments import Segment
    from gazette_aio.protocol.recoverylog import FSMHints, RecordedOp


class Outcome(enum.Enum):
    """Outcome of an operation. The value of an error is its text."""

    APPLIED = ""
    """It extends the history, and concerns a live file or none."""
    FNODE_NOT_TRACKED = "fnode not tracked"
    """It extends the history, and concerns a file that isn't live. Nothing is to be done."""
    CHECKSUM_MISMATCH = "checksum mismatch"
    """It is of another history."""
    EXPECTED_HINTED_FNODE = "op is not create, and an Fnode was hinted"
    LINK_EXISTS = "link exists"
    NO_SUCH_LINK = "fnode has no such link"
    NOT_HINTED_AUTHOR = "op author does not match the next hinted author"
    """It is of another history than the hinted one."""
    PROPERTY_EXISTS = "property exists"
    WRONG_SEQ_NO = "wrong sequence number"

    @property
    def is_step(self) -> bool:
        """Whether the history was extended."""
        return self in _STEPS


_STEPS: Final = frozenset((Outcome.APPLIED, Outcome.FNODE_NOT_TRACKED))


class FSM:
    """History of a recovery log, as far as it was read or recorded.

    Args:
        hints: Hints to follow. Those of a log alone follow its first history.

    Raises:
        ValidationError: A segment of the hints is invalid.
        RecoveryError: The hints name no log, or contradict themselves.
    """

    def __init__(self, hints: FSMHints) -> None:
        if not hints.log:
            raise RecoveryError("hinted log not provided")
        fnodes, segments = live_log_segments(hints)
        self.next_seq_no: int = 1
        """Sequence number of the next operation."""
        self.next_checksum: int = 0
        """Checksum of all operations so far."""
        self.last_log: str = hints.log
        """Log of the last operation."""
        self.properties: dict[str, str] = {item.path: item.content for item in hints.properties}
        """Contents of small files that are kept in hints, by path."""
        self.live_nodes: dict[int, LiveNode] = {}
        """Files that have a path, by fnode."""
        self.links: dict[str, int] = {}
        """Fnodes by path."""
        self._hinted_segments = deque(segments)
        self._hinted_fnodes = deque(fnodes)
        self._hinted_files = frozenset(fnodes)
        self._hinted_properties = frozenset(self.properties)
        self._forgotten: list[int] = []
        if self._hinted_segments:
            self._jump(self._hinted_segments[0])

    @property
    def is_fresh(self) -> bool:
        """Whether no operation was applied."""
        return self.next_seq_no == 1

    @property
    def hinted_segment(self) -> Segment | None:
        """The hinted segment of which operations are expected, or None after the last one."""
        return self._hinted_segments[0] if self._hinted_segments else None

    @property
    def hinted_segments(self) -> tuple[Segment, ...]:
        """Hinted segments to come, with that of which operations are expected."""
        return tuple(self._hinted_segments)

    @property
    def has_remaining_hints(self) -> bool:
        """Whether there are hinted segments or fnodes that weren't met."""
        return bool(self._hinted_segments or self._hinted_fnodes)

    @property
    def remaining_hints(self) -> tuple[int, int]:
        """Numbers of hinted segments and fnodes that weren't met."""
        return len(self._hinted_segments), len(self._hinted_fnodes)

    def apply(self, op: RecordedOp, payload: bytes) -> Outcome:
        """Apply an operation, or leave all as it is if the operation doesn't extend the history.

        Args:
            op: The operation, with its offsets and log.
            payload: The operation as it was encoded, without the header of its frame.
        """
        hinted = self.hinted_segment
        if hinted is not None and hinted.author != op.author:
            return Outcome.NOT_HINTED_AUTHOR
        if op.seq_no != self.next_seq_no:
            return Outcome.WRONG_SEQ_NO
        if op.checksum != self.next_checksum:
            return Outcome.CHECKSUM_MISMATCH
        outcome = self._change_files(op)
        if outcome.is_step:
            self._step(op, payload)
        return outcome

    def _step(self, op: RecordedOp, payload: bytes) -> None:
        self.next_seq_no += 1
        self.next_checksum = next_checksum(self.next_checksum, payload)
        self.last_log = op.log
        hinted = self.hinted_segment
        if hinted is not None and hinted.last_seq_no < self.next_seq_no:
            self._hinted_segments.popleft()
            if self._hinted_segments:
                self._skip_to(self._hinted_segments[0])

    def _skip_to(self, segment: Segment) -> None:
        # Invariant: files that the hints don't name were dead when the hints were made. What ended
        # them may be in the gap.
        if segment.first_seq_no > self.next_seq_no:
            for fnode in self.live_nodes.keys() - self._hinted_files:
                self._forgotten.append(fnode)
                for path in self.live_nodes.pop(fnode).links:
                    del self.links[path]
        self._jump(segment)

    def take_forgotten(self) -> list[int]:
        """Return the files that have lived until a gap between hinted segments, which ended them.

        They are returned once. Look after each operation that was applied.
        """
        forgotten = self._forgotten
        if forgotten:
            self._forgotten = []
        return forgotten

    def apply_own_write(  # noqa: PLR0917 - Hot: keywords take time.
        self,
        node: LiveNode,
        payload: bytes,
        author: int,
        first_offset: int,
        last_offset: int,
        log: str,
    ) -> None:
        """Apply a write that was encoded as the next operation, which `apply()` would check.

        Args:
            node: The file, which lives.
            payload: The operation as it was encoded, without the header of its frame.
            author: Its author.
            first_offset: Offset at which its frame begins.
            last_offset: Offset at which its content ends.
            log: Its log.
        """
        seq_no, checksum = self.next_seq_no, self.next_checksum
        node.extend(author, seq_no, checksum, first_offset, last_offset, log)
        self.next_seq_no = seq_no + 1
        self.next_checksum = next_checksum(checksum, payload)
        self.last_log = log

    def _jump(self, segment: Segment) -> None:
        self.next_seq_no = segment.first_seq_no
        self.next_checksum = segment.first_checksum

    # Of `Any`, as a field named `property` hides the decorator from the checkers of its stub.
    def _change_files(self, op: Any) -> Outcome:
        if op.HasField("create"):
            return self._create(op)
        if self._hinted_fnodes and self._hinted_fnodes[0] == op.seq_no:
            return Outcome.EXPECTED_HINTED_FNODE
        for kind, change in self._CHANGES.items():
            if op.HasField(kind):
                return change(self, op)
        return Outcome.APPLIED

    def _create(self, op: Any) -> Outcome:
        path = op.create.path
        if path in self.links:
            return Outcome.LINK_EXISTS
        if path in self.properties:
            return Outcome.PROPERTY_EXISTS
        if self._hinted_fnodes:
            if self._hinted_fnodes[0] != op.seq_no:
                # Invariant: a file that won't live blocks no path of one that does.
                return Outcome.FNODE_NOT_TRACKED
            self._hinted_fnodes.popleft()
        self.links[path] = op.seq_no
        node = self.live_nodes[op.seq_no] = LiveNode(path)
        _extend(node, op)
        return Outcome.APPLIED

    def _link(self, op: Any) -> Outcome:
        path = op.link.path
        if path in self.links:
            return Outcome.LINK_EXISTS
        if path in self.properties:
            return Outcome.PROPERTY_EXISTS
        if (node := self.live_nodes.get(op.link.fnode)) is None:
            return Outcome.FNODE_NOT_TRACKED
        node.links.add(path)
        self.links[path] = op.link.fnode
        _extend(node, op)
        return Outcome.APPLIED

    def _unlink(self, op: Any) -> Outcome:
        path = op.unlink.path
        if (node := self.live_nodes.get(op.unlink.fnode)) is None:
            return Outcome.FNODE_NOT_TRACKED
        if path not in node.links:
            return Outcome.NO_SUCH_LINK
        node.links.remove(path)
        del self.links[path]
        if node.links:
            _extend(node, op)
        else:
            del self.live_nodes[op.unlink.fnode]
        return Outcome.APPLIED

    def _write(self, op: Any) -> Outcome:
        if (node := self.live_nodes.get(op.write.fnode)) is None:
            return Outcome.FNODE_NOT_TRACKED
        _extend(node, op)
        return Outcome.APPLIED

    def _set_property(self, op: Any) -> Outcome:
        if op.property.path in self.links:
            return Outcome.LINK_EXISTS
        # Hints have the newest content as of their last operation. Earlier ones may be read.
        if not self._hinted_segments or op.property.path not in self._hinted_properties:
            self.properties[op.property.path] = op.property.content
        return Outcome.APPLIED

    _CHANGES: ClassVar[dict[str, Callable[[FSM, Any], Outcome]]] = {
        "link": _link,
        "unlink": _unlink,
        "write": _write,
        "property": _set_property,
    }

    def snapshot(self) -> LiveNodes:
        """Return the live files and properties as they are now, which takes little time."""
        nodes = {fnode: node.copy() for fnode, node in self.live_nodes.items()}
        return LiveNodes(nodes, dict(self.properties))

    def build_hints(self, log: str) -> FSMHints:
        """Return hints by which another one can follow this history.

        Args:
            log: The log that the hints are for.
        """
        return LiveNodes(self.live_nodes, self.properties).build_hints(log)

    def __repr__(self) -> str:
        segments, fnodes = self.remaining_hints
        return (
            f"<FSM at {self.next_seq_no} of {self.last_log!r}, {len(self.live_nodes)} live files, "
            f"{segments} hinted segments and {fnodes} fnodes to come>"
        )


def _extend(node: LiveNode, op: RecordedOp) -> None:
    node.extend(op.author, op.seq_no, op.checksum, op.first_offset, op.last_offset, op.log)
