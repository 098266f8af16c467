"""Playback of a recovery log: what to read next, and what it does to files.

Bytes of a log become operations, of which those that extend the followed history are re-enacted.
Hints let playback skip what concerns no live file. The known end of a log, its *head*, is the end
of an append: an operation never continues past it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gazette_aio.consumer.recoverylog.decoder import LogDecoder
from gazette_aio.consumer.recoverylog.fsm import FSM, Outcome
from gazette_aio.consumer.recoverylog.operations import (
    OperationError,
    content_checksum,
    encode_operation,
    next_checksum,
)
from gazette_aio.consumer.recoverylog.paths import check_path
from gazette_aio.consumer.recoverylog.playing.holes import LogHole, loss_of
from gazette_aio.consumer.recoverylog.playing.ranges import ranges_of
from gazette_aio.protocol.errors import RecoveryError
from gazette_aio.protocol.recoverylog import FSMHints, RecordedOp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gazette_aio.consumer.recoverylog.author import Author
    from gazette_aio.consumer.recoverylog.playing.files import StagedFiles
    from gazette_aio.consumer.recoverylog.playing.ranges import LogRange


class PlaybackError(RecoveryError):
    """A recovery log can't be played.

    Args:
        text: Reason.
        log: Log being played, or empty.
        offset: Offset of the log, or -1.
    """

    def __init__(self, text: str, *, log: str = "", offset: int = -1) -> None:
        self.log = log
        self.offset = offset
        super().__init__(text)


class Playback:
    """Player of a recovery log, without tasks and connections.

    Args:
        hints: Hints to follow.
        files: Files to change.
        accept_loss: Whether what a hole held may be lost: the history then ends at the hole, unless
            later operations continue it.

    Raises:
        ValidationError: A segment of the hints is invalid.
        RecoveryError: The hints name no log, contradict themselves, or have an unsafe path.
    """

    def __init__(self, hints: FSMHints, files: StagedFiles, *, accept_loss: bool = False) -> None:
        self.fsm: FSM = FSM(hints)
        """History as far as it was played."""
        self.hints_log: str = hints.log
        """Log in which playback ends."""
        for path in self.fsm.properties:
            check_path(path)
        self._files = files
        self._accept_loss = accept_loss
        segment = self.fsm.hinted_segment
        self._decoder = LogDecoder(segment.log, segment.first_offset) if segment else LogDecoder("")
        self._boundaries: list[int] = []
        self._heads: dict[str, int] = {}
        self._has_read = False
        self._last_author = 0
        self._handoff_author = 0
        self._holes: list[LogHole] = []
        self._seen: dict[int, int] = {}
        self._at = 0
        self._target: int | None = None
        self._target_offset = 0
        self._expected_checksum = 0
        self._checksum = 0
        self._rest: Callable[[], object] = int
        self.log: str = ""
        """Log being read."""
        self.content_bytes: int = 0
        """Bytes of content that were written to files."""
        self.junk_bytes: int = 0
        """Bytes that began no operation, and were passed over."""

    @property
    def logs(self) -> list[str]:
        """Logs to read, in their order."""
        logs = [segment.log for segment in self.fsm.hinted_segments]
        return list(dict.fromkeys([*logs, self.hints_log]))

    @property
    def offset(self) -> int:
        """Offset of the log at which the next chunk begins."""
        return self._decoder.fed_offset

    @property
    def head(self) -> int:
        """Known end of the log being read."""
        return self._heads[self.log]

    @property
    def last_head(self) -> int:
        """Known end of the log in which playback ends."""
        return self._heads[self.hints_log]

    def begin(self, heads: Mapping[str, int]) -> None:
        """Begin to play.

        Args:
            heads: End of each of the `logs`.

        Raises:
            PlaybackError: A hinted segment is beyond the end of its log.
        """
        self._heads = dict(heads)
        for segment in self.fsm.hinted_segments:
            end = heads[segment.log]
            if segment.first_offset >= end or segment.last_offset > end:
                raise PlaybackError(
                    f"max write-head of {segment.log} is {end}, vs hinted {segment}; "
                    "possible data loss",
                    log=segment.log,
                    offset=end,
                )
        first = self.fsm.hinted_segment
        self._enter(first.log if first else self.hints_log, first.first_offset if first else 0)

    def ranges(self) -> list[LogRange]:
        """Return what is still to be read, up to the known ends of logs."""
        return ranges_of(self.fsm.hinted_segments, self.hints_log, self.log, self.offset)

    def remaining_bytes(self) -> int:
        """Return how many bytes are still to be read, up to the known ends of logs."""
        return sum(
            max(0, (part.end or self._heads[part.log]) - part.begin) for part in self.ranges()
        )

    def play(
        self, begin: int, chunks: Iterable[bytes], *, rest: Callable[[], object] = int
    ) -> None:
        """Play content of the `log`.

        Afterwards, another `log` or a later `offset` may be due. What lies before it is ignored.

        Args:
            begin: Offset of the first chunk, at most `offset`.
            chunks: Content, without a gap.
            rest: Called between operations, unless files are written, which lets other threads
                run anyway.

        Raises:
            PlaybackError: The log is damaged, or files can't be changed.
        """
        log = self.log
        self._rest = rest
        try:
            for chunk in chunks:
                self._feed(begin, chunk)
                if self.log != log:
                    break
                begin += len(chunk)
            self._files.flush()
        except PlaybackError:
            raise
        except OperationError as error:
            raise self._failed(error, self._decoder.offset) from error
        except (RecoveryError, OSError) as error:
            raise self._failed(error, self._at) from error

    def jump(self, offset: int) -> None:
        """Go on after a hole of the log.

        Raises:
            PlaybackError: The hole is within an operation, or hints name what it held.
        """
        hinted = self.fsm.hinted_segment
        if hinted is not None and 0 != hinted.last_offset <= offset:
            raise self._loss(
                f"offset jumps over hinted segment of {self.log} (from: {self.offset}, "
                f"to: {offset}, hinted range: {hinted.first_offset}-{hinted.last_offset})"
            )
        begin = self.offset
        try:
            self._decoder.jump(offset)
        except RecoveryError as error:
            raise self._failed(error, self._begun) from error
        self._has_read = True
        self._seen.clear()
        if hinted is None and not self.fsm.is_fresh:
            # Invariant: no hints explain a gap in the history from here on. An operation of the
            # author who was followed, beyond the next one, tells that the hole held others.
            next_seq_no = self.fsm.next_seq_no
            if not self._accept_loss:
                self._seen[self._last_author] = next_seq_no - 1
            # Another author tells nothing, unless its operations continue the history.
            hole = LogHole(self.log, begin, offset, next_seq_no)
            self._holes = [*self._unexplained(), hole]
        self._pass_boundaries()

    def end_in_hole(self) -> None:
        """Go on at the known end of the log, as everything before it was removed.

        Raises:
            PlaybackError: Hints name what was removed, or it may have continued the history.
        """
        is_hinted = self.fsm.hinted_segment is not None
        if not is_hinted and not self.fsm.is_fresh and not self._accept_loss:
            raise self._loss(
                f"content of {self.log} from {self.offset} to its end at {self.head} was removed"
            )
        self.jump(self.head)

    def check_hints(self) -> None:
        """Check that the log can still have what hints name.

        Raises:
            PlaybackError: The log was played to its known end, and hints name more of it.
        """
        if self.fsm.hinted_segment is not None and self.offset >= self.head:
            raise self._loss(
                f"offset {self.log}:{self.offset} >= readThrough {self.head}, "
                "but FSM has unused hints"
            )

    def has_reached(self, offset: int) -> bool:
        """Return whether all hinted operations, and the last log up to `offset`, were played."""
        return self.fsm.hinted_segment is None and self.offset >= offset

    def check_history(self) -> list[LogHole]:
        """Check, at the end of the log, that its history was played as a whole.

        Returns:
            Holes that may have continued the history, if their loss is accepted; each hole once.

        Raises:
            PlaybackError: The log has content, but no operation was applied: its beginning is
                missing, and no file would be recovered. Or no operation after a hole continues the
                history, which the hole may have done.
        """
        if self.fsm.is_fresh and self._has_read:
            raise self._loss(
                f"{self.log} has content up to {self.offset}, but its history doesn't begin there: "
                "its beginning was removed, or hints are missing"
            )
        holes, self._holes = self._unexplained(), []
        if holes and not self._accept_loss:
            raise PlaybackError(loss_of(holes), log=holes[0].log, offset=holes[0].begin)
        return holes

    def handoff(self, author: Author) -> bytes:
        """Return the frame of an operation by which an author takes the log over."""
        self._handoff_author = author
        op = RecordedOp(seq_no=self.fsm.next_seq_no, checksum=self.fsm.next_checksum, author=author)
        return encode_operation(op)[1]

    @property
    def has_rest(self) -> bool:
        """Whether what was played ends within an operation, or with bytes that may begin one."""
        return not self._decoder.is_at_boundary or self._decoder.offset < self.offset

    def extend(self, *ends: int) -> None:
        """Take note of ends of appends to the last log. The greatest one is its known end.

        Raises:
            PlaybackError: What was played ends within an operation, and so does an append.
        """
        self._heads[self.hints_log] = max(self.last_head, *ends)
        if self.log == self.hints_log:
            self._boundaries = sorted({*self._boundaries, *ends})
            self._pass_boundaries()

    def is_held_by(self, author: Author) -> bool:
        """Return whether the latest operation of the history is of an author."""
        return self._last_author == author

    def _unexplained(self) -> list[LogHole]:
        """Return the holes after which no operation continues the history."""
        # The handoff to this player tells nothing of what holes held.
        own = 1 if self._last_author == self._handoff_author else 0
        return [hole for hole in self._holes if self.fsm.next_seq_no - hole.seq_no <= own]

    def _enter(self, log: str, offset: int) -> None:
        self.log = log
        self._decoder = LogDecoder(log, offset)
        self._seen.clear()
        self._boundaries = [self._heads[log]]
        self._pass_boundaries()

    def _feed(self, begin: int, chunk: bytes) -> None:
        decoder, end = self._decoder, begin + len(chunk)
        while (due := decoder.fed_offset) < end:
            stop = min((end, *self._boundaries[:1]))
            decoder.feed(chunk[due - begin : stop - begin])
            self._has_read = True
            self._play_fed()
            if decoder is not self._decoder:
                return  # Another log is due.
            self._pass_boundaries()

    def _pass_boundaries(self) -> None:
        while self._boundaries and self._boundaries[0] <= self.offset:
            if self._boundaries.pop(0) == self.offset:
                try:
                    self.junk_bytes += self._decoder.end(is_append_boundary=True)
                except RecoveryError as error:
                    raise self._failed(error, self._begun) from error

    def _play_fed(self) -> None:
        """Play what was fed, as far as it's whole, or until another log is due."""
        fsm, files, seen, log, rest = self.fsm, self._files, self._seen, self.log, self._rest
        nodes, fed = fsm.live_nodes, self._decoder.fed_offset
        while self._skip_to_hinted():
            hinted, is_hinted = fsm.hinted_segment, fsm.has_remaining_hints
            for op, write, payload, content, begin, end in self._decoder:
                if content is None:
                    self.junk_bytes += end - begin
                    continue
                if op is None:
                    self._write_more(content)
                    if is_hinted:
                        break
                    continue
                self._at = begin
                fnode = write.fnode
                node = None if is_hinted else nodes.get(fnode)
                if (
                    node is not None
                    and op.seq_no == fsm.next_seq_no
                    and op.checksum == fsm.next_checksum
                ):
                    # Hot: `_apply()` comes to this for a write to a live file.
                    author = op.author
                    fsm.apply_own_write(node, payload, author, begin, end, log)
                    self._last_author = author
                    seen[author] = op.seq_no
                    target = fnode
                else:
                    op.log, op.first_offset, op.last_offset = log, begin, end
                    target = self._apply(op, payload)
                    rest()
                if end > fed:
                    self._begin_content(target, op, content)
                elif target is not None:
                    # The checksum isn't computed of a view; files are written from it.
                    expected = op.content_checksum
                    if expected and content_checksum(bytes(content)) != expected:
                        raise _mismatch(target)
                    if content:  # Writing nothing doesn't extend a file.
                        files.write(target, write.offset, content)
                        self.content_bytes += len(content)
                if is_hinted and fsm.hinted_segment is not hinted:
                    break
            else:
                return

    def _skip_to_hinted(self) -> bool:
        """Go on at the hinted segment, and return whether it's in the present log."""
        decoder, hinted = self._decoder, self.fsm.hinted_segment
        if hinted is not None and decoder.is_at_boundary:
            if hinted.log != self.log:
                self._enter(hinted.log, hinted.first_offset)
                return False
            if decoder.offset < hinted.first_offset:
                decoder.skip_to(hinted.first_offset)
                self._seen.clear()
        return True

    # Of `Any`, as a field named `property` hides the decorator from the checkers of its stub.
    def _apply(self, op: Any, payload: bytes) -> int | None:
        """Apply an operation, and return the file to which its content is to be written."""
        outcome = self.fsm.apply(op, payload)
        if not outcome.is_step:
            self._check_passed_over(op, outcome)
            return None
        self._last_author = op.author
        self._seen[op.author] = op.seq_no
        if outcome is Outcome.FNODE_NOT_TRACKED:
            return None
        forgotten = self.fsm.take_forgotten()
        target = self._reenact(op, forgotten)
        for fnode in forgotten:
            self._files.remove(fnode)
        return target

    def _reenact(self, op: Any, forgotten: list[int]) -> int | None:
        if op.HasField("write"):
            fnode: int = op.write.fnode
            return None if fnode in forgotten else fnode
        if op.HasField("create"):
            check_path(op.create.path)
            self._files.create(op.seq_no)
        elif op.HasField("unlink"):
            if op.unlink.fnode not in self.fsm.live_nodes and op.unlink.fnode not in forgotten:
                self._files.remove(op.unlink.fnode)
        elif op.HasField("link"):
            check_path(op.link.path)
        elif op.HasField("property"):
            check_path(op.property.path)
        return None

    def _begin_content(self, target: int | None, op: Any, content: memoryview) -> None:
        """Write the beginning of content that wasn't fed as a whole, or pass over all of it."""
        self._target, self._target_offset = target, op.write.offset
        self._expected_checksum, self._checksum = op.content_checksum, 0
        self._write_more(content)

    def _write_more(self, content: memoryview) -> None:
        """Write more content of the latest write, unless it's passed over."""
        if self._target is None or not content:
            return
        data = bytes(content)
        self._files.write(self._target, self._target_offset, data)
        self._target_offset += len(data)
        self.content_bytes += len(data)
        # Other implementations record no checksum of content.
        if self._expected_checksum:
            self._checksum = next_checksum(self._checksum, data)
            if self._decoder.is_at_boundary and self._checksum != self._expected_checksum:
                raise _mismatch(self._target)

    def _check_passed_over(self, op: Any, outcome: Outcome) -> None:
        """Check that an operation that wasn't applied is of another history.

        Invariant: operations of an author are of one history, and without gaps in a log that is
        read without gaps. So those of an author who was followed tell what is missing or damaged.
        """
        seen = self._seen.get(op.author)
        if seen is None or op.seq_no <= seen:
            return
        hinted = self.fsm.hinted_segment
        is_followed = op.author == self._last_author and (
            hinted is None or hinted.author == op.author
        )
        if op.seq_no > seen + 1 or (is_followed and op.seq_no == self.fsm.next_seq_no):
            holes = self._unexplained()
            cause = f"others were in {holes[-1]}" if holes else "the log is damaged"
            raise RecoveryError(
                f"operation {op.seq_no} of author {op.author} doesn't continue operation {seen} of "
                f"the author: {outcome.value}; {cause}"
            )
        self._seen[op.author] = op.seq_no

    @property
    def _begun(self) -> int:
        """Offset of the operation that was fed in part."""
        return self._decoder.offset if self._decoder.is_at_boundary else self._at

    def _loss(self, text: str) -> PlaybackError:
        return PlaybackError(f"{text}; possible data loss", log=self.log, offset=self.offset)

    def _failed(self, error: Exception, offset: int) -> PlaybackError:
        return PlaybackError(
            f'playOperation("{self.log}", {offset}): {error}', log=self.log, offset=offset
        )


def _mismatch(fnode: int) -> RecoveryError:
    return RecoveryError(f"content of fnode {fnode} doesn't match its checksum")
