"""Encoding of recovery logs: changes of files become operations of one history.

Paths are those of the log: absolute, clean, and relative to the directory that is recorded.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.consumer.recoverylog.fsm import Outcome
from gazette_aio.consumer.recoverylog.operations import content_checksum, encode_operation
from gazette_aio.consumer.recoverylog.recording.errors import RecorderError
from gazette_aio.message.framing import FIXED_FRAME_WORD
from gazette_aio.protocol.recoverylog import Property, RecordedOp

if TYPE_CHECKING:
    from gazette_aio.consumer.recoverylog.author import Author
    from gazette_aio.consumer.recoverylog.fsm import FSM

PROPERTY_PATHS: Final = frozenset({"/IDENTITY"})
"""Paths of small files that are recorded as properties, and kept in hints."""

MAX_WRITE_BYTES: Final = 1 << 20
"""Length of a write beyond which it's recorded as several operations, each with a checksum."""

_HEADER: Final = struct.Struct("<4sI")


class LogEncoder:
    """Encoder of the operations of one author, the counterpart of `LogDecoder`.

    Each method encodes all operations of one change, or raises. After a RecorderError, the history
    may differ from the files, and the encoder must not be used any longer.

    Args:
        fsm: History that the operations extend, without remaining hints.
        author: Author of the operations.
        log: Log of the operations.
        offset: Offset of the first operation.
    """

    def __init__(self, fsm: FSM, author: Author, log: str, offset: int = 0) -> None:
        self.fsm = fsm
        """History of the log, including all operations so far."""
        self.offset: int = offset
        """Offset of the next operation."""
        self._author = int(author)
        self._log = log
        self._taken = offset
        self._pieces: list[bytes] = []
        # Hot: a message of which fields are set takes half the time of a new one.
        # Of `Any`, as a field named `property` hides the decorator from the checkers of its stub.
        self._write_op: Any = RecordedOp(author=self._author, write=RecordedOp.Write(length=1))
        self._write_fields = self._write_op.write

    @property
    def pending_bytes(self) -> int:
        """Length of the encoded operations that weren't taken."""
        return self.offset - self._taken

    def age_bytes(self, fnode: int) -> int:
        """Return the length of the log since the first operation of a file.

        Playback reads as much, but for long parts that concern no file that has a path. Operations
        in other logs don't count. Of a file that has no path, it's zero.
        """
        node = self.fsm.live_nodes.get(fnode)
        segments = node.segments if node is not None else []
        own = (segment.first_offset for segment in segments if segment.log == self._log)
        return self.offset - next(own, self.offset)

    def take(self) -> list[bytes]:
        """Return the encoded operations and contents since the last call."""
        pieces, self._pieces = self._pieces, []
        self._taken = self.offset
        return pieces

    def no_op(self) -> None:
        """Encode an operation that changes no file."""
        self._encode()

    def open(
        self, path: str, *, create: bool = False, exclusive: bool = False, truncate: bool = False
    ) -> int:
        """Encode the opening of a file for writing, and return its fnode.

        Args:
            path: Path of the file.
            create: Whether a file that isn't known is created.
            exclusive: Whether a file that is known is an error.
            truncate: Whether a file that is known becomes an empty one, with another fnode.

        Raises:
            RecorderError: The path is that of a property, or of a file that must or must not exist.
        """
        if path in PROPERTY_PATHS:
            raise RecorderError(f"unexpected open of property path {path!r}")
        fnode = self.fsm.links.get(path)
        if fnode is None and not create:
            raise RecorderError(f"open of unknown file without O_CREATE: {path!r}")
        if fnode is not None:
            if exclusive:
                raise RecorderError(f"open of known file with O_EXCL: {path!r}")
            if not truncate:
                return fnode
            self._unlink(fnode, path)
        return self._encode(create=RecordedOp.Create(path=path))

    def write(self, fnode: int, data: bytes, offset: int) -> None:
        """Encode a write.

        Args:
            fnode: The file.
            data: What was written.
            offset: Offset of the file at which it was written.

        Raises:
            RecorderError: The file has no path any longer.
        """
        if (length := len(data)) > MAX_WRITE_BYTES:
            for begin in range(0, length, MAX_WRITE_BYTES):
                self.write(fnode, data[begin : begin + MAX_WRITE_BYTES], offset + begin)
            return
        fsm = self.fsm
        if (node := fsm.live_nodes.get(fnode)) is None:
            raise RecorderError(f"recorder FSM error: {Outcome.FNODE_NOT_TRACKED.value}")
        op, fields = self._write_op, self._write_fields
        op.seq_no = fsm.next_seq_no
        op.checksum = fsm.next_checksum
        fields.fnode = fnode
        fields.offset = offset
        fields.length = length
        op.content_checksum = content_checksum(data)
        payload = op.SerializeToString()
        begin = self.offset
        header = _HEADER.pack(FIXED_FRAME_WORD, len(payload))
        self.offset = end = begin + _HEADER.size + len(payload) + length
        self._pieces += (header, payload, data)
        fsm.apply_own_write(node, payload, self._author, begin, end, self._log)

    def remove(self, path: str) -> None:
        """Encode the removal of a path.

        Raises:
            RecorderError: The path is that of a property, or isn't known.
        """
        if path in PROPERTY_PATHS:
            raise RecorderError(f"unexpected delete of property path {path!r}")
        self._unlink(self._known(path, "delete"), path)

    def link(self, source: str, target: str) -> None:
        """Encode a further path `target` of the file at `source`.

        Raises:
            RecorderError: A path is that of a property, `source` isn't known, or `target` is.
        """
        if target in PROPERTY_PATHS:
            raise RecorderError(f"unexpected link of property path {target!r}")
        self._link(self._known(source, "link"), target)

    def rename(self, source: str, target: str, content: str | None = None) -> None:
        """Encode the replacement of `target`, which may be known, by the file at `source`.

        As `rename()` of POSIX, it does nothing if both are paths of the same file.

        Args:
            source: Path of the file.
            target: Its new path.
            content: Content of the file if `target` is the path of a property.

        Raises:
            RecorderError: `source` isn't known.
        """
        fnode = self._known(source, "rename")
        previous = self.fsm.links.get(target)
        if previous == fnode:
            return
        if previous is not None:
            self._unlink(previous, target)
        if target in PROPERTY_PATHS:
            assert content is not None, "the content of a property is recorded"
            self._encode(property=Property(path=target, content=content))
        else:
            self._link(fnode, target)
        self._unlink(fnode, source)

    def _known(self, path: str, what: str) -> int:
        if (fnode := self.fsm.links.get(path)) is None:
            raise RecorderError(f"{what} of unknown path {path!r}")
        return fnode

    def _link(self, fnode: int, path: str) -> None:
        self._encode(link=RecordedOp.Link(fnode=fnode, path=path))

    def _unlink(self, fnode: int, path: str) -> None:
        self._encode(unlink=RecordedOp.Link(fnode=fnode, path=path))

    def _encode(self, **change: Any) -> int:
        """Encode and apply an operation, and return its sequence number."""
        fsm = self.fsm
        op = RecordedOp(
            seq_no=fsm.next_seq_no, checksum=fsm.next_checksum, author=self._author, **change
        )
        payload, frame = encode_operation(op)
        op.log, op.first_offset = self._log, self.offset
        op.last_offset = end = self.offset + len(frame)
        outcome = fsm.apply(op, payload)
        if outcome is not Outcome.APPLIED:
            raise RecorderError(f"recorder FSM error: {outcome.value}")
        self._pieces.append(frame)
        self.offset = end
        return op.seq_no

    def __repr__(self) -> str:
        return f"<LogEncoder of {self._log!r} at {self.offset}, {self.pending_bytes} bytes pending>"
