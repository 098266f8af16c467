"""Reader of an iterator of messages: from arrivals of journals to outputs, one after the other.

                     ┌────► arrival of any journal ◄────┐
                     │              │                   │ no content is left
                     │              ▼                   │
    output ◄─── content of one journal: take, or work ──┤
    or error         ▲                                  │ the next commit needs a replay
                     └────── content read again ◄───────┘

Content at hand is of one journal. Another journal's arrival is taken only after all of that content
is processed, and its outputs are delivered.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from gazette_aio.aio.closing import Closing
from gazette_aio.aio.owner import Owner
from gazette_aio.message.reading.journal_input import ArrivalKind
from gazette_aio.protocol.errors import (
    FramingError,
    GazetteError,
    OffsetJumpError,
    ReplayError,
    UsageError,
)
from gazette_aio.protocol.status_errors import JournalNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Sized

    from gazette_aio.client import RetryReader
    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.envelopes.outputs import JournalOutputs
    from gazette_aio.message.reading.engine import JournalEngine
    from gazette_aio.message.reading.inputs import Inputs
    from gazette_aio.message.reading.journal_input import Arrival, JournalInput

Out = TypeVar("Out", bound="Sized")

TURN: Final = 512
"""Messages delivered before the event loop has a turn."""

_SHORT_STEPS: Final = 64  # Steps without outputs before the event loop has a turn.

_logger = logging.getLogger(__name__)


class OutputReader(Owner, Generic[Out]):
    """Reads journals, and returns the outputs that an engine makes of their content.

    Args:
        name: Name of the form of iteration.
        inputs: Journals to read.
        engine: Makes outputs.
        allow_replay_gaps: Whether content of a replay may be missing.
    """

    def __init__(
        self,
        name: str,
        inputs: Inputs,
        engine: JournalEngine[Out],
        *,
        allow_replay_gaps: bool = False,
    ) -> None:
        self.is_used: bool = False
        """Whether outputs were requested."""
        self._name = name
        # Invariant: tasks hold no reference to the reader, so that a leaked one is detected.
        self._inputs = inputs
        self._engine = engine
        self._allow_replay_gaps = allow_replay_gaps
        self._current: JournalInput | None = None  # Its content is at hand.
        self._is_done = False  # All content at hand is processed.
        self._failed: Exception | None = None  # To be raised next.
        self._range = (0, 0)  # Range of the replay, which was read up to `_through`.
        self._through = 0
        self._replaying: RetryReader | None = None
        self._retired = Closing()  # Readers of ended replays.
        self._closed = self._is_busy = False
        self._unpaused = 0  # Messages delivered since the event loop had a turn.

    async def next(self) -> Out:
        """Return the next outputs. Those returned before must have been delivered.

        Raises:
            StopAsyncIteration: At the end of content, or after closing.
            FramingError: Content of a journal can't be split or decoded. The next call continues
                after it.
            GazetteError: A journal can't be read, as of `RetryReader`; a note names the journal
                and the offset. The next call continues there.
            ReplayError: Content of a transaction can't be read again. Further calls return
                outputs of other journals. The replay is retried when none of them is ready.
            UsageError: Another task waits for outputs.

        Cancellation: safe.
        """
        if self._is_busy:
            raise UsageError(f"two tasks use one {self._name}: give each task its own")
        self.is_used = self._is_busy = True
        try:
            return await self._next()
        finally:
            self._is_busy = False

    async def _next(self) -> Out:
        if self._unpaused >= TURN:
            # A loop over messages that are all at hand lets other tasks have turns, too.
            await self._pause()
        steps, skipped = 0, -1
        while not self._closed:
            if self._retired:
                await self._retired.aclose()
            elif self._failed is not None:
                self._raise(self._failed)
            elif (source := self._current) is None:
                await self._pause()
                self._receive(await self._inputs.next_arrival())
            elif (output := self._take(source.content)) is not None:
                return output
            elif not self._is_done:
                # Steps that only skip a message are short.
                if steps > 1 and (steps % _SHORT_STEPS == 0 or skipped == self._engine.skipped):
                    await self._pause()
                steps, skipped = steps + 1, self._engine.skipped
                await self._work(source)
            elif source.content.replay is None:
                self._current = None
            else:
                await self._pause()
                await self._read_replay(source)
        raise StopAsyncIteration

    def next_nowait(self) -> Out | None:
        """Return more outputs of the same content, or None if a single step makes none."""
        source = self._current
        if source is None or self._failed is not None or self._closed:
            return None
        content = source.content
        if content.next_made is None and not self._is_done:
            self._note_work(partial(self._engine.work, content))
        return None if isinstance(content.next_made, FramingError) else self._take(content)

    def _take(self, content: JournalOutputs[Any]) -> Out | None:
        output = content.take()
        if output is not None:
            self._unpaused += len(output)
        return output

    async def _pause(self) -> None:
        self._unpaused = 0
        await asyncio.sleep(0)

    async def _work(self, source: JournalInput) -> None:
        """Work on content at hand."""
        self._note_work(partial(self._engine.work, source.content))

    def _note_work(self, work: Callable[[], bool]) -> None:
        """Note the result of work, or its error."""
        try:
            self._is_done = not work()
        except ReplayError as error:
            self._fail_replay(error)
        except Exception as error:  # noqa: BLE001 - raised next.
            self._failed = error

    def settle(self, undelivered: Sequence[Envelope[Any]] = ()) -> None:
        """Declare outputs delivered, except for the last envelopes that were returned."""
        if self._current is not None and not self._closed:
            self._current.content.settle_before(undelivered[0].begin if undelivered else None)

    # Arrivals.

    def _receive(self, arrival: Arrival) -> None:
        """Take the next arrival: of any journal, or else of the current one."""
        engine, source, content = self._engine, arrival.source, arrival.source.content
        match arrival.kind:
            case ArrivalKind.ERROR:
                assert arrival.error is not None
                note = f"reading messages of {source.journal} at offset {source.offset}"
                arrival.error.add_note(note)
                self._failed = arrival.error
            case ArrivalKind.RESET:
                # The content began with the state of the deleted journal.
                engine.forget(source.journal)
                source.content = engine.begin(content.format, source.offset)
            case ArrivalKind.LEFT:
                engine.leave(content)
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
                self._current, self._is_done = source, False

    def _raise(self, failed: Exception) -> None:
        self._failed = None
        if isinstance(failed, ReplayError):
            self._give_up_replay(failed)
        raise failed

    # Replays.

    async def _read_replay(self, source: JournalInput) -> None:
        """Read some content that the next commit needs again."""
        replay, size = source.content.replay, 0
        assert replay is not None, "a commit needs a replay"
        if (begun := replay.open()) is not None:
            self._range, self._through = begun, begun[0]
        try:
            if source.is_void:
                raise ReplayError(f"replay reader: {source.journal} was created anew")
            if self._replaying is None:
                self._replaying = source.replay(*self._range)
            reader = self._replaying
            while size < self._engine.replay_bytes:
                try:
                    chunk = await anext(reader)
                except StopAsyncIteration:
                    self._retire()
                    self._check_replayed(reader.offset)
                    replay.end()
                    self._is_done = False
                    return
                except OffsetJumpError:
                    if not self._allow_replay_gaps:
                        raise
                    chunk = b""
                replay.feed(chunk, reader.offset - len(chunk))
                self._through, self._is_done = reader.offset, False
                size += len(chunk)
        except GazetteError as error:
            self._fail_replay(error)

    def _check_replayed(self, offset: int) -> None:
        """Raise ReplayError if content of the replay is missing, whose reader ended at `offset`."""
        through, end = self._through, self._range[1]
        if offset < end:
            # Race: another task than the reading one may close a reader.
            raise ReplayError(f"replay reader: closed at {offset}, ahead of {end}")
        if through < end and not self._allow_replay_gaps:
            # Wire: a broker doesn't report a hole if all the rest of the range lies in the hole.
            raise ReplayError(f"replay reader: no content from {through} to {end}")

    def _fail_replay(self, error: GazetteError) -> None:
        """Raise an error of the replay next. It begins again after what was delivered."""
        assert self._current is not None, "a replay is of the content at hand"
        content, cause = self._current.content, error
        if content.replay is not None:
            content.replay.abort()
        if not isinstance(error, ReplayError):
            error = ReplayError(f"replay reader: {error}")
            error.__cause__ = cause
        text = f"reading committed message: {error}"
        self._failed = ReplayError(text, journal=content.journal, offset=self._through)
        self._failed.__cause__ = error
        self._failed.retryable = cause.retryable

    def _give_up_replay(self, error: ReplayError) -> None:
        """End a failed replay, and park its journal, or abandon it if it was deleted."""
        self._retire()
        current, cause = self._current, error.__cause__
        assert current is not None, "a replay is of the content at hand"
        is_gone = cause is not None and isinstance(cause.__cause__, JournalNotFoundError)
        if self._inputs.is_selection and (current.is_void or is_gone):
            self._engine.forget(current.journal)
            self._inputs.abandon(current)  # A new journal of the same name may begin.
        elif self._inputs.may_park(current):
            offset = self._engine.rewind(current.content)
            current.content = self._engine.begin(current.content.format, offset)
            self._inputs.park(current, offset)
        else:
            return
        self._current = None

    def _retire(self) -> None:
        if self._replaying is not None:
            self._retired.add(self._replaying)
            self._replaying = None

    # Closing.

    async def aclose(self) -> None:
        """End reading, and close a given reader, too. Idempotent.

        Cancellation: safe — call again.
        """
        self._closed = True
        await self._inputs.aclose()
        self._retire()
        await self._retired.aclose()

    @property
    def _is_running(self) -> bool:
        return self._inputs.running

    def __del__(self) -> None:
        if hasattr(self, "_closed") and self._is_running:
            self._inputs.end_from_anywhere()
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"open={self._inputs.open}"
        return f"<{self._name} of {self._inputs.source} {state} skipped={self._engine.skipped}>"
