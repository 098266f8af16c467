"""Decisions of an iterator of messages: its outputs, and what each output requires.

                    ┌─────────────┐ ──► Deliver       outputs that are ready
    receive() ────► │             │ ──► NeedContent   the next arrival of any journal
    feed_replay() ► │ MessageFlow │ ──► NeedReplay    content of a range to read again
    work() ───────► │             │ ──► Work          a step that takes time
                    └──────┬──────┘ ──► Stop          an error to raise before continuing
                           ▼
                        Engine       content in, envelopes or record batches out

A flow has no clock, no task and no reader: its driver asks for the `next()` step, executes the
step, and asks again. Content at hand is of one journal. The flow asks for another journal's
arrival only after all of that content is processed and its outputs are delivered.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from gazette_aio.message.envelopes.content import framing_error
from gazette_aio.message.reading.journal_input import ArrivalKind, C
from gazette_aio.protocol.errors import FramingError, OffsetBeyondHeadError, ReplayError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sized

    from gazette_aio.message.envelopes.origin import JournalFormat
    from gazette_aio.message.reading.journal_input import Arrival, JournalInput
    from gazette_aio.protocol.errors import GazetteError

_logger = logging.getLogger(__name__)

Out_co = TypeVar("Out_co", bound="Sized", covariant=True)


@dataclass(frozen=True, slots=True)
class Deliver(Generic[Out_co]):
    """Outputs are ready. They count as delivered when the next step is requested."""

    output: Out_co


@dataclass(frozen=True, slots=True)
class NeedContent:
    """All content at hand is processed: `receive()` the next arrival."""


@dataclass(frozen=True, slots=True)
class NeedReplay:
    """A commit needs content to be read again: from `begin` to `end`, or the rest of that range."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Work:
    """Call `work()`, which touches `size_bytes` of content, and let other tasks have a turn."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Raise `error`. The next step continues after the error."""

    error: Exception


Step = Deliver[Out_co] | NeedContent | NeedReplay | Work | Stop


class ReplayContent(Protocol):
    """Content of a transaction that outgrew the retained messages, and is read again."""

    def open(self) -> tuple[int, int] | None:
        """Begin, and return the range to read; or None if the replay has begun."""

    def feed(self, chunk: bytes, begin: int) -> None:
        """Take content, perhaps after a gap."""

    def end(self) -> None:
        """Declare the end of content, even if it isn't the end of the range.

        A partial frame at the end is garbage before an acknowledgement, and was skipped when first
        read.
        """

    def abort(self) -> None:
        """Drop the content fed. The next `open()` begins after what was delivered. Idempotent."""


class Engine(Protocol[C, Out_co]):
    """Makes outputs, envelopes or record batches, of the content of journals."""

    replay_bytes: int
    """Approximate content of a replay that one step works on."""
    explain: Callable[[FramingError], FramingError]
    """Returns the error to raise for an error."""

    @property
    def skipped(self) -> int:
        """Number of messages and frames that were skipped because they can't be decoded."""
        ...

    def offsets(self) -> Mapping[str, int]:
        """Return the known offsets by journal."""
        ...

    def begin(self, journal_format: JournalFormat[Any], offset: int, /) -> C:
        """Begin the content of a journal, and keep its known state."""
        ...

    def leave(self, content: C, /) -> None:
        """Release content of a journal that isn't read any more, but keep its state."""

    def forget(self, journal: str, /) -> None:
        """Forget the state of a journal, and its undelivered messages."""

    def take(self, content: C, /) -> Out_co | None:
        """Return the next outputs, or None if none are ready. Raise a FramingError in its turn."""

    def step(self, content: C, /) -> bool:
        """Make the next outputs, if any; return False if more content or a replay is needed.

        Raises:
            ReplayError: The content of the replay has changed.
        """
        ...

    def bytes_of_step(self, content: C, /) -> int:
        """Return about how many bytes a step may touch; 0 if no step takes long."""
        ...

    def room(self, content: C, /) -> int | None:
        """Return how many more bytes a step could use; None if no step may run ahead now."""

    def rewind(self, content: C, /) -> int:
        """Undo the commit that needs a replay, except for what was delivered of it.

        Returns:
            Offset of the committing message, or of an earlier one that wasn't delivered. The
            content begins anew there.
        """
        ...

    def replay(self, content: C, /) -> ReplayContent | None:
        """Return the replay that is next, or in progress."""


class MessageFlow(Generic[C, Out_co]):
    """Decides the next step of an iterator.

    Args:
        engine: Makes outputs.
        allow_replay_gaps: Whether content of a replay may be missing.
    """

    def __init__(self, engine: Engine[C, Out_co], *, allow_replay_gaps: bool) -> None:
        self.allow_replay_gaps = allow_replay_gaps
        """Whether content of a replay may be missing."""
        self.current: JournalInput[C] | None = None
        """Journal whose content is at hand."""
        self._engine = engine
        self._is_done = False  # All content at hand is processed.
        self._range = NeedReplay(0, 0)  # Range of the replay, which was read up to `_through`.
        self._through = 0
        self._failed: Exception | None = None

    def next(self) -> Step[Out_co]:
        """Return the next step."""
        engine = self._engine
        has_worked = False
        while self._failed is None:
            if self.current is None:
                return NeedContent()
            content = self.current.content
            try:
                output = engine.take(content)
            except FramingError as error:
                return Stop(error)
            if output is not None:
                return Deliver(output)
            if self._is_done:
                replay = engine.replay(content)
                if replay is None:
                    self.current = None
                    continue
                if (begun := replay.open()) is not None:
                    self._range, self._through = NeedReplay(*begun), begun[0]
                return self._range
            size = engine.bytes_of_step(content)
            if size or has_worked:
                return Work(size)
            self.work()
            has_worked = True
        failed, self._failed = self._failed, None
        return Stop(failed)

    def work(self) -> None:
        """Do a step. It may run in a thread; meanwhile only checkpoints may be made."""
        if self.current is not None:
            try:
                self._is_done = not self._engine.step(self.current.content)
            except ReplayError as error:
                self.fail_replay(error)
            except Exception as error:  # noqa: BLE001 - raised by the next step.
                self._failed = error

    # Content of journals.

    def receive(self, arrival: Arrival[C]) -> None:
        """Take the next arrival: of any journal after NeedContent, else of the current journal."""
        source, content, error = arrival.source, arrival.source.content, arrival.error
        match arrival.kind:
            case ArrivalKind.ERROR if isinstance(error, OffsetBeyondHeadError):
                self._failed = error  # It's the user's to reset the checkpoint.
            case ArrivalKind.ERROR:
                assert error is not None
                at = content.offset
                failed = self._engine.explain(framing_error(error, source.journal, at, at, "read"))
                failed.__cause__ = error
                self._failed = failed
            case ArrivalKind.RESET:
                # The content began with the state of the deleted journal.
                self._engine.forget(source.journal)
                source.content = self._engine.begin(source.format, source.offset)
            case ArrivalKind.LEFT:
                self._engine.leave(content)
            case kind:
                before, discarded = content.offset, 0
                if kind is ArrivalKind.CHUNK:
                    discarded = content.feed(arrival.chunk, arrival.begin)
                elif kind is ArrivalKind.JUMP:
                    discarded = content.jump(arrival.begin)
                else:
                    content.end()
                if discarded or kind is ArrivalKind.JUMP:
                    extra = {
                        "journal": source.journal,
                        "from": before,
                        "to": arrival.begin,
                        "discarded": discarded,
                    }
                    _logger.warning("source journal offset jump", extra=extra)
                self.current, self._is_done = source, False

    def abandon(self) -> None:
        """Forget the current journal, which was deleted."""
        if self.current is not None:
            self._engine.forget(self.current.journal)
            self.current = None

    def rewind(self) -> int:
        """Return the current journal to the state before the commit whose replay failed.

        Content of other journals is needed next.

        Returns:
            Offset from which the journal's content must be received again.
        """
        source = self.current
        assert source is not None, "only messages of what's being read commit"
        offset = self._engine.rewind(source.content)
        source.content = self._engine.begin(source.format, offset)
        self.current = None
        return offset

    # Replays.

    def feed_replay(self, chunk: bytes, begin: int) -> None:
        """Take content of the current replay, from offset `begin` on."""
        self._replay().feed(chunk, begin)
        self._through = begin + len(chunk)
        self._is_done = False

    def end_replay(self, offset: int) -> None:
        """Declare that the reader of the replay ended at `offset`."""
        through, end = self._through, self._range.end
        if offset < end:
            # Race: another task than the reading one may close a reader.
            self.fail_replay(ReplayError(f"replay reader: closed at {offset}, ahead of {end}"))
        elif through < end and not self.allow_replay_gaps:
            # Wire: a broker doesn't report a hole if all the rest of the range lies in the hole.
            self.fail_replay(ReplayError(f"replay reader: no content from {through} to {end}"))
        else:
            self._replay().end()
            self._is_done = False

    def fail_replay(self, error: GazetteError) -> None:
        """Stop with an error of the replay, which begins again after what was delivered."""
        self._replay().abort()
        if not isinstance(error, ReplayError):
            cause, error = error, ReplayError(f"replay reader: {error}")
            error.__cause__ = cause
        assert self.current is not None
        journal, text = self.current.journal, f"reading committed message: {error}"
        self._failed = ReplayError(text, journal=journal, offset=self._through)
        self._failed.__cause__ = error

    def _replay(self) -> ReplayContent:
        assert self.current is not None, "only messages of what's being read commit"
        replay = self._engine.replay(self.current.content)
        assert replay is not None, "no replay is under way"
        return replay
