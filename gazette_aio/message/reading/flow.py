"""Decisions of an iterator of messages: what it delivers, and what it needs before it can.

                    ┌─────────────┐ ──► Deliver       outputs, which are ready
    receive() ────► │             │ ──► NeedContent   the next arrival, of any journal
    feed_replay() ► │ MessageFlow │ ──► NeedReplay    content of a range, which is read again
    work() ───────► │             │ ──► Work          a step which takes its time
                    └──────┬──────┘ ──► Stop          an error to raise, after which it goes on
                           ▼
                        Engine       content in, envelopes or record batches out

A flow has no clock, no task and no reader: its driver asks for the `next()` step, does what that
says, and asks again. Content at hand is of one journal. An arrival of another one is asked for once
that content is done, and all of its outputs were delivered.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from gazette_aio.message.envelopes.splitter import framing_error
from gazette_aio.message.reading.journal_input import ArrivalKind, C
from gazette_aio.protocol.errors import FramingError, ReplayError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sized

    from gazette_aio.message.framing import Framing
    from gazette_aio.message.reading.journal_input import Arrival, JournalInput
    from gazette_aio.message.sequencing.outcome import ReplayRange
    from gazette_aio.protocol.errors import GazetteError

_logger = logging.getLogger(__name__)

Out_co = TypeVar("Out_co", bound="Sized", covariant=True)


@dataclass(frozen=True, slots=True)
class Deliver(Generic[Out_co]):
    """Outputs are ready. They are delivered once the next step is asked for."""

    output: Out_co


@dataclass(frozen=True, slots=True)
class NeedContent:
    """All content at hand is done: `receive()` the next arrival."""


@dataclass(frozen=True, slots=True)
class NeedReplay:
    """A commit takes content which must be read again, from `begin` to `end`, or the rest of it."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Work:
    """Call `work()`, which touches `size_bytes` of content, and let others have their turn."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Raise `error`. The step after it goes on behind what's wrong."""

    error: Exception


Step = Deliver[Out_co] | NeedContent | NeedReplay | Work | Stop


class ReplayContent(Protocol):
    """Content which is read again, as its transaction outgrew what's retained."""

    def open(self) -> ReplayRange | None:
        """Begin, and return the range to read; or None if that has begun."""

    def feed(self, chunk: bytes, begin: int) -> None:
        """Take content, which may be behind a gap."""

    def end(self) -> None:
        """Declare the end of content, even if it isn't the end of the range.

        A partial frame there is garbage before an acknowledgement, and was passed over when it was
        first read.
        """

    def abort(self) -> None:
        """Forget what was fed. The next `open()` is behind what was delivered. Idempotent."""


class Engine(Protocol[C, Out_co]):
    """Makes outputs of the content of journals: envelopes, or record batches."""

    replay_bytes: int
    """Content of a replay which is worked on at once, roughly."""
    explain: Callable[[FramingError], FramingError]
    """Returns an error as it's to be raised."""

    @property
    def skipped(self) -> int:
        """Number of messages and frames which were left out as they can't be decoded."""
        ...

    def offsets(self) -> Mapping[str, int]:
        """Return the offsets which are known of journals."""
        ...

    def begin(self, journal: str, framing: Framing, offset: int, /) -> C:
        """Begin to take content of a journal, of which what was known before is kept."""
        ...

    def leave(self, content: C, /) -> None:
        """Retain nothing of a journal which isn't read any more, but what's known of it."""

    def forget(self, journal: str, /) -> None:
        """Forget what's known of a journal, and what of it isn't delivered."""

    def take(self, content: C, /) -> Out_co | None:
        """Return the next outputs, or None if none are ready. Raise the FramingError of others."""

    def step(self, content: C, /) -> bool:
        """Make the next outputs, if any; return False if that takes content, or a replay.

        Raises:
            ReplayError: Content which is read again isn't what it was.
        """
        ...

    def bytes_of_step(self, content: C, /) -> int:
        """Return how many bytes a step may touch, roughly; or 0 if it never takes long."""
        ...

    def room(self, content: C, /) -> int | None:
        """Return how many more bytes a step could do with; None while it can't be done ahead."""

    def replay(self, content: C, /) -> ReplayContent | None:
        """Return the replay which is next, or under way."""


class MessageFlow(Generic[C, Out_co]):
    """Decides what an iterator does next.

    Args:
        engine: Makes outputs.
        allow_replay_gaps: Whether content which is read again may be missing.
    """

    def __init__(self, engine: Engine[C, Out_co], *, allow_replay_gaps: bool) -> None:
        self.allow_replay_gaps = allow_replay_gaps
        """Whether content which is read again may be missing."""
        self.current: JournalInput[C] | None = None
        """The journal whose content is at hand."""
        self._engine = engine
        self._is_done = False  # All of that content.
        self._range = NeedReplay(0, 0)  # Which is read again, and up to where it was.
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
                    self._range, self._through = NeedReplay(begun.begin, begun.end), begun.begin
                return self._range
            size = engine.bytes_of_step(content)
            if size or has_worked:
                return Work(size)
            self.work()
            has_worked = True
        failed, self._failed = self._failed, None
        return Stop(failed)

    def work(self) -> None:
        """Do a step. It may run in a thread, while nothing else is done but checkpoints."""
        if self.current is not None:
            try:
                self._is_done = not self._engine.step(self.current.content)
            except ReplayError as error:
                self.fail_replay(error)
            except Exception as error:  # noqa: BLE001 - raised by whoever asks for the next step.
                self._failed = error

    # Content of journals.

    def receive(self, arrival: Arrival[C]) -> None:
        """Take the next arrival: of any journal if one is needed, or else of the current one."""
        source, content, error = arrival.source, arrival.source.content, arrival.error
        match arrival.kind:
            case ArrivalKind.ERROR:
                assert error is not None
                at = content.offset
                failed = self._engine.explain(framing_error(error, source.journal, at, at, "read"))
                failed.__cause__ = error
                self._failed = failed
            case ArrivalKind.RESET:
                # What began to be read was made of what was known of its predecessor.
                self._engine.forget(source.journal)
                source.content = self._engine.begin(source.journal, source.framing, source.offset)
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

    # Content which is read again.

    def feed_replay(self, chunk: bytes, begin: int) -> None:
        """Take content of the replay which is under way, from offset `begin` on."""
        self._replay().feed(chunk, begin)
        self._through = begin + len(chunk)
        self._is_done = False

    def end_replay(self, offset: int) -> None:
        """Declare that the replay was read up to `offset`, from which on there's nothing."""
        through, end = self._through, self._range.end
        if offset < end:
            # Race: who closes a reader needn't be who reads.
            self.fail_replay(ReplayError(f"replay reader: closed at {offset}, ahead of {end}"))
        elif through < end and not self.allow_replay_gaps:
            # Wire: a hole isn't told of if all the rest of the content lies in it.
            self.fail_replay(ReplayError(f"replay reader: no content from {through} to {end}"))
        else:
            self._replay().end()
            self._is_done = False

    def fail_replay(self, error: GazetteError) -> None:
        """Stop with an error of the replay, which is begun again behind what was delivered."""
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
