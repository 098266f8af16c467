"""Content of one journal, from chunks to committed messages."""

from __future__ import annotations

import struct
from collections import deque
from itertools import accumulate, takewhile
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from gazette_aio.message.core.plain.sequencing import Remarks, Sequencer
from gazette_aio.message.core.plain.splitting import (
    SPLITTERS,
    Block,
    Frame,
    FrameSplitter,
    Refusal,
    Splitter,
)
from gazette_aio.message.core.plain.stamps import (
    BEGIN,
    CLOCK,
    END,
    EXPLICIT,
    FLAGS,
    PAYLOAD,
    PRODUCER,
    Row,
    StampReader,
    stamp_of,
)
from gazette_aio.message.core.rules import ACK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gazette_aio.message.core import Part
    from gazette_aio.message.core.plain.documents import Schema
    from gazette_aio.message.core.rules import State

T = TypeVar("T")

Output: TypeAlias = "Batch | tuple[Any, ...] | None"

_ODD_ROWS, _ODD_BYTES = 1024, 256 << 10
"""Limits of a run of odd messages."""
_MOST_AGAIN = 256
"""Messages that are processed together of those that were put back, as they may be once more."""


class _Odd(Frame):
    """A message whose UUID the caller has to read."""

    __slots__ = ()


_Piece: TypeAlias = "Row | Frame | Refusal"
"""What was split off: a Frame if its UUID wasn't read."""


class _Content:
    """Messages of content that is read once, or again."""

    def __init__(self, splitter: Splitter, stamps: StampReader) -> None:
        self.splitter: Splitter = splitter
        self.waiting: deque[_Piece] = deque()
        """What was split off, and isn't processed."""
        self._waiting_bytes = 0
        self._stamps = stamps
        self._is_odd = False  # The last message that was read.

    @property
    def offset(self) -> int:
        """Offset of the next message."""
        return self.waiting[0][BEGIN] if self.waiting else self.splitter.offset

    @property
    def buffered(self) -> int:
        """Bytes that were fed and aren't processed."""
        return self._waiting_bytes + self.splitter.buffered

    def feed_frames(self, frames: Sequence[tuple[bytes, int, int]]) -> None:
        """Take frames that follow."""
        if not isinstance(self.splitter, FrameSplitter):
            raise ValueError("content isn't fed as frames")  # noqa: TRY004
        at = self.splitter.offset
        for _, begin, end in frames:
            if begin < at or end <= begin:
                raise ValueError("frames aren't in the order of their offsets")
            at = end
        self.splitter.jump(at)
        self.add(map(Frame._make, frames))

    def jump(self, offset: int) -> int:
        """Continue at `offset`, after the frames at hand; return how many bytes are discarded."""
        while (found := self.splitter.split(1 << 20)) is not None:
            self.add([found] if isinstance(found, Refusal) else map(Frame, *found))
        return self.splitter.jump(offset)

    def add(self, pieces: Iterable[_Piece]) -> None:
        """Take what follows what is waiting."""
        for piece in pieces:
            self.waiting.append(piece)
            self._waiting_bytes += piece[END] - piece[BEGIN]

    def put_back(self, pieces: Sequence[_Piece]) -> None:
        """Take what precedes what is waiting."""
        self.waiting.extendleft(reversed(pieces))
        self._waiting_bytes += sum([piece[END] - piece[BEGIN] for piece in pieces])

    def take(self, kind: type, limit_bytes: int, limit_rows: int) -> list[Any]:
        """Remove the first of what is waiting, as far as it's of a kind; a Row is a `tuple`."""
        taken: list[_Piece] = []
        size = 0
        while self.waiting and size < limit_bytes and len(taken) < limit_rows:
            piece = self.waiting[0]
            if piece.__class__ is not kind:
                break
            taken.append(self.waiting.popleft())
            size += piece[END] - piece[BEGIN]
        self._waiting_bytes -= size
        return taken

    def rows(self, limit_bytes: int, limit_rows: int) -> list[Row]:
        """Return the next rows, at least one, or none if something else is next."""
        rows: list[Row] = self.take(tuple, limit_bytes, min(limit_rows, _MOST_AGAIN))
        if rows:
            return rows
        # Others may be odd, too. What's read ahead would be read again after each run of them.
        block = self._split(1 if self._is_odd else limit_bytes)
        if block is None or isinstance(block, Refusal):
            self.put_back([] if block is None else [block])
            return []
        rows = self._stamps.read_rows(block)
        self._is_odd = len(rows) < len(block.payloads)
        if self._is_odd:
            self.put_back(list(map(Frame, *(column[len(rows) :] for column in block))))
            if not rows:
                self._gather()
        return rows

    def _split(self, limit_bytes: int) -> Block | Refusal | None:
        """Return the next frames, or what isn't one."""
        if not self.waiting:
            return self.splitter.split(limit_bytes)
        frames = self.take(Frame, limit_bytes, _MOST_AGAIN)
        return Block(*map(list, zip(*frames, strict=True))) if frames else None

    def _gather(self) -> None:
        """Split off a run of odd messages."""
        run: list[_Piece] = []
        size = 0
        while size < _ODD_BYTES and len(run) < _ODD_ROWS:
            block = self._split(1)
            if not isinstance(block, Block):
                run += [] if block is None else [block]
                break
            (payload,), (begin,), (end,) = block
            stamp = self._stamps.read(payload)
            if stamp is not None:
                run.append((payload, begin, end, *stamp))
                break
            run.append(_Odd(payload, begin, end))
            size += end - begin
        self.put_back(run)

    def has_messages(self) -> bool:
        """Return whether there are messages at hand."""
        self.put_back(self.rows(1, 1))
        return bool(self.waiting)

    def odd(self) -> list[bytes]:
        """Return the odd messages that are next."""
        odd = cast("Iterable[_Odd]", takewhile(_is_odd, self.waiting))
        return [piece.payload for piece in odd]

    def refusal(self) -> Refusal | None:
        """Return the bytes that are next if they're no message."""
        if not self.waiting:
            return self.splitter.refuse_end()
        refused = self.take(Refusal, 1 << 62, 1)
        return refused[0] if refused else None


def _is_odd(piece: _Piece) -> bool:
    return isinstance(piece, _Odd)


class Journal:
    """Content of one journal, from chunks to committed messages.

    Args:
        framing: `lines`, `fixed`, or `frames` that are split elsewhere.
        offset: Offset to begin at.
        prefix: Constant bytes before UUIDs.
        suffix: Constant bytes after UUIDs, which are text then, and 16 bytes otherwise.
        path: Names of nested JSON members that lead to UUIDs which have another place.
        states: States of producers as of the offset; None to return all messages.
        entering: Whether what's pending before the offset is to be delivered.
        max_frame_bytes: Largest size of a frame.
        max_pending_bytes: What pending messages may take.
        strict: Leave UUIDs to the caller that are neither zero nor of version 1.
        skip_acks: Don't return acknowledgements.
        skip_errors: Return messages before and after bytes that aren't messages together.
    """

    def __init__(
        self,
        framing: str,
        offset: int,
        *,
        prefix: bytes | None = None,
        suffix: bytes | None = None,
        path: Sequence[bytes] | None = None,
        states: Sequence[State] | None = None,
        entering: bool = True,
        max_frame_bytes: int = 1 << 30,
        max_pending_bytes: int = 64 << 20,
        strict: bool = False,
        skip_acks: bool = False,
        skip_errors: bool = False,
    ) -> None:
        if framing not in SPLITTERS:
            raise ValueError("framing isn't lines, fixed or frames")
        self._new_splitter: Callable[[int], Splitter] = lambda offset: SPLITTERS[framing](
            offset, max_frame_bytes
        )
        self._stamps = StampReader(prefix, suffix, path, strict=strict)
        self._content = self._content_at(offset)
        self._again: _Content | None = None  # Content that is read again.
        self._changed: str | None = None  # Why that isn't what it was.
        self._skip_acks = skip_acks
        self._skip_errors = skip_errors
        self._held: list[Row] = []  # To be returned together with later ones.
        self._held_bytes = 0  # Content that was handled for them.
        self._limit = 0  # Of the content that is handled at once.
        self._max_pending_bytes = max_pending_bytes
        self._sequencer: Sequencer | None = None
        if states is not None:
            self._sequencer = Sequencer(offset, states, enters=entering, skips_acks=skip_acks)
        self._lock = Lock()

    def _content_at(self, offset: int) -> _Content:
        return _Content(self._new_splitter(offset), self._stamps)

    @property
    def offset(self) -> int:
        """Offset of the next message to process."""
        return self._content.offset

    @property
    def buffered(self) -> int:
        """Bytes of content that aren't processed."""
        return self._content.buffered

    @property
    def pending_bytes(self) -> int:
        """Bytes that retained pending messages count for."""
        return self._of_sequencer(lambda it: it.pending_bytes, default=0)

    @property
    def pending_rows(self) -> int:
        """Number of retained pending messages."""
        return self._of_sequencer(lambda it: it.pending_rows, default=0)

    @property
    def has_pending(self) -> bool:
        """Whether a span began since the last checkpoint."""
        return self._of_sequencer(lambda it: it.has_pending, default=False)

    @property
    def passed(self) -> int:
        """Offset after the last message that nothing reports later."""
        return self._of_sequencer(lambda it: it.passed, default=0)

    @property
    def remarks(self) -> tuple[int, int, int, int]:
        """Numbers, so far, of what indicates misbehaving producers.

        They're messages with unexpected flags, acknowledgements older than the last one, messages
        outside of transactions that discarded pending ones, and producers that were forgotten with
        what they had pending.
        """
        return self._of_sequencer(lambda it: it.remarks, default=Remarks())

    def _of_sequencer(self, call: Callable[[Sequencer], T], *, default: T) -> T:
        with self._lock:
            return default if self._sequencer is None else call(self._sequencer)

    def evict(self, limit_bytes: int, limit_rows: int | None = None) -> None:
        """Retain at most so many bytes and rows of pending messages.

        Others are read again if they commit.
        """
        self._of_sequencer(lambda it: it.evict(limit_bytes, limit_rows), default=None)

    def retained(self) -> list[bytes]:
        """Return the bytes of the retained pending messages, in any order.

        They aren't those of a commit that needs a replay.
        """
        return self._of_sequencer(lambda it: it.retained(), default=[])

    def feed(self, chunk: bytes) -> None:
        """Take content that follows."""
        self._content.splitter.feed(chunk)

    def feed_frames(self, frames: Sequence[tuple[bytes, int, int]]) -> None:
        """Take messages that follow, and the offsets of their frames."""
        self._content.feed_frames(frames)

    def end(self) -> None:
        """Declare the end of content."""
        self._content.splitter.end()

    def jump(self, offset: int) -> int:
        """Continue at `offset`, and return how many bytes of a partial frame are discarded."""
        return self._content.jump(offset)

    def work(self, limit_bytes: int) -> Output:
        """Process about `limit_bytes` of content.

        Returns:
            A Batch; or None if more content is needed; or a tuple of what else is next.
        """
        if limit_bytes < 1:
            raise ValueError("limit is zero")
        self._limit = limit_bytes
        return self._run(limit_bytes, 1 << 62)

    def _run(self, limit_bytes: int, limit_rows: int) -> Output:
        count = 0
        with self._lock:
            out, self._held = self._held, []
            size, self._held_bytes = self._held_bytes, 0
            while size < limit_bytes and count < limit_rows and not self._is_blocked:
                content = self._again or self._content
                rows = content.rows(limit_bytes - size, limit_rows - count)
                if rows:
                    taken = self._add(rows, out)
                    content.put_back(rows[taken:])
                    size += sum([row[END] - row[BEGIN] for row in rows[:taken]])
                    count += taken
                # What was refused before isn't refused again.
                elif self._again is None or content.refusal() is None:
                    break
            if self._sequencer is not None:
                self._sequencer.evict(self._max_pending_bytes)
            may_hold = size < limit_bytes and self._again is None and not self._is_blocked
            if self._skip_errors and may_hold and (refused := self._refused()):
                self._held, self._held_bytes = out, size if out else 0
                return refused
            return Batch(out) if out else self._other(count)

    def _other(self, count: int) -> Output:
        """Return what has come of work that returns no messages."""
        if self._changed is not None:
            return "changed", self._changed
        replay = None if self._sequencer is None else self._sequencer.replay
        if replay is not None and self._again is None:
            return "replay", replay.begin, replay.end
        if count:
            return ("progress",)
        return self._refused()

    def _refused(self) -> Output:
        """Return what's next instead of a message that is read for certain."""
        content = self._again or self._content
        if odd := content.odd():
            return "odd", odd
        refused = content.refusal()
        return None if refused is None else ("refused", *refused)

    @property
    def _is_blocked(self) -> bool:
        """Whether no row may be added now."""
        sequencer = self._sequencer
        return sequencer is not None and (
            self._changed is not None or (sequencer.replay is not None and self._again is None)
        )

    def _add(self, rows: list[Row], out: list[Row]) -> int:
        """Add what rows commit to `out`, and return how many were taken."""
        sequencer = self._sequencer
        if sequencer is None:
            out += [row for row in rows if row[FLAGS] != ACK] if self._skip_acks else rows
        elif self._again is None:
            return sequencer.add(rows, out)
        else:
            self._changed = sequencer.add_again(rows, out)
        return len(rows)

    def resolve(self, uuids: Sequence[bytes]) -> Output:
        """Continue with the first odd messages, given the 16 bytes of their UUIDs."""
        content = self._again or self._content
        if not 0 < len(uuids) <= len(content.odd()):
            raise ValueError("there are fewer odd messages, or no UUIDs")
        odd = content.take(_Odd, 1 << 62, len(uuids))
        rows = [(*frame[:3], *stamp_of(uuid)) for frame, uuid in zip(odd, uuids, strict=True)]
        content.put_back(rows)
        if self._skip_errors:
            return self._run(self._limit, 1 << 62)
        return self._run(1 << 62, len(rows))

    def leave_out(self) -> tuple[int, int]:
        """Leave the first odd message out, and return its begin and end."""
        odd = (self._again or self._content).take(_Odd, 1, 1)
        if not odd:
            raise ValueError("no message is odd")
        return odd[0].begin, odd[0].end

    def commit(self, verdicts: Sequence[tuple[bytes, int]]) -> Output:
        """Commit pending messages up to clocks of their producers.

        It's as if acknowledgements followed, which aren't returned.
        """
        if self._sequencer is None:
            raise ValueError("all messages are read")
        content = self._content
        if self._again is not None or content.has_messages():
            raise ValueError("messages before the commits aren't handled")
        if any(not clock for _, clock in verdicts):
            raise ValueError("clock is zero")
        at = content.offset
        content.add((b"", at, at, clock, name, ACK, False) for name, clock in verdicts)
        return self._run(1 << 62, len(verdicts))

    def settle(self, batch: Batch, start: int, stop: int) -> None:
        """Note that messages `[start, stop)` of a batch were delivered."""
        rows = batch.rows(start, stop)
        last, is_all = rows[-1] if rows else None, stop == len(batch)
        self._of_sequencer(lambda it: it.settle(len(rows), last, is_all=is_all), default=None)

    def settle_all(self) -> None:
        """Note that all content processed so far had nothing to deliver."""
        self._of_sequencer(lambda it: it.settle(0, None, is_all=True), default=None)

    def checkpoint(self, prune_horizon_ns: int = 0) -> tuple[int, list[State]]:
        """Return the offset read through, and states of producers, as of what was delivered."""
        if self._sequencer is None:
            raise ValueError("all messages are read")
        with self._lock:
            return self._sequencer.checkpoint(prune_horizon_ns)

    def begin_replay(self) -> tuple[int, int]:
        """Begin a replay, or continue it after what was returned; return the range to read."""
        replay = None if self._sequencer is None else self._sequencer.replay
        if replay is None:
            raise ValueError("no replay is needed")
        self._again = self._content_at(replay.begin)
        self._changed = None
        return replay.begin, replay.end

    def feed_replay(self, chunk: bytes) -> None:
        """Take content of the range that follows."""
        self._replayed.splitter.feed(chunk)

    def feed_replay_frames(self, frames: Sequence[tuple[bytes, int, int]]) -> None:
        """Take messages of the range that follow."""
        self._replayed.feed_frames(frames)

    def jump_replay(self, offset: int) -> None:
        """Continue a replay after a gap."""
        self._replayed.jump(offset)

    @property
    def _replayed(self) -> _Content:
        if self._again is None:
            raise ValueError("no replay is under way")
        return self._again

    def end_replay(self) -> Batch:
        """End a replay, and return the rest of its commit, which may be nothing."""
        if self._replayed.waiting or self._changed is not None:
            raise ValueError("messages of the replay aren't handled")
        self._again = None
        out: list[Row] = []
        self._of_sequencer(lambda it: it.end_replay(out), default=None)
        return Batch(out)


class Batch:
    """Committed messages, in their order."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, start: int, stop: int) -> list[Row]:
        """Return messages `[start, stop)`."""
        if not 0 <= start <= stop <= len(self._rows):
            raise IndexError("messages aren't of the batch")
        return self._rows[start:stop]

    def payloads(self, start: int, stop: int) -> list[bytes]:
        """Return the bytes of messages."""
        return [row[PAYLOAD] for row in self.rows(start, stop)]

    def lines(self, start: int, stop: int, *, acks: bool = True) -> bytes:
        """Return the bytes of messages, each followed by a newline."""
        rows = self.rows(start, stop)
        if not acks:
            rows = [row for row in rows if row[FLAGS] != ACK]
        return b"\n".join([*[row[PAYLOAD] for row in rows], b""])

    def places(
        self, start: int, stop: int, flags: tuple[Any, ...]
    ) -> tuple[list[int], list[int], list[int], list[Any], list[bytes]]:
        """Return begins, ends, clocks, flags and producers. `flags` are the known ones."""
        rows = self.rows(start, stop)
        if not rows:
            return [], [], [], [], []
        kind = cast("Callable[[int], Any]", type(flags[0]))
        known = len(flags)
        # Hot: one transposition takes less than a loop for each column.
        _, begins, ends, clocks, producers, of, _ = zip(*rows, strict=True)
        return (
            list(begins),
            list(ends),
            list(clocks),
            [flags[each] if each < known else kind(each) for each in of],
            list(producers),
        )

    def unusual(self, start: int, stop: int) -> tuple[list[int], list[int]]:
        """Return the indices of acknowledgements, and of messages with explicit UUIDs."""
        rows = self.rows(start, stop)
        found = [at for at, row in enumerate(rows) if row[FLAGS] == ACK or row[EXPLICIT]]
        return (
            [start + at for at in found if rows[at][FLAGS] == ACK],
            [start + at for at in found if rows[at][EXPLICIT]],
        )

    def columns(self) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """Return producers, clocks, flags, begins and ends, as numbers in memory."""
        rows, count = self._rows, len(self._rows)
        return (
            struct.pack(f"<{count}Q", *(int.from_bytes(row[PRODUCER]) for row in rows)),
            struct.pack(f"<{count}Q", *(row[CLOCK] for row in rows)),
            struct.pack(f"<{count}H", *(row[FLAGS] for row in rows)),
            struct.pack(f"<{count}q", *(row[BEGIN] for row in rows)),
            struct.pack(f"<{count}q", *(row[END] for row in rows)),
        )

    def values(self, start: int, stop: int) -> tuple[bytes, bytes]:
        """Return messages as the buffers of an array of bytes: offsets and data."""
        payloads = self.payloads(start, stop)
        ends = list(accumulate(map(len, payloads), initial=0))
        if ends[-1] >= 1 << 31:
            raise ValueError("messages take more than 2 GiB")
        return struct.pack(f"<{len(ends)}i", *ends), b"".join(payloads)

    def documents(self, schema: Schema, threads: int) -> list[Part]:
        """Return the columns of documents: none, as `Schema` does."""
        del threads
        return schema.refuse(len(self._rows))
