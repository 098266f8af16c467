"""Iterators of the messages of journals."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from gazette_aio.message.checkpoint import SequencerCheckpoint
from gazette_aio.message.framing import DEFAULT_MAX_FRAME_BYTES
from gazette_aio.message.reading import DEFAULT_BUFFER_BYTES, MessageIterator
from gazette_aio.message.sequencer import Sequencer
from gazette_aio.message.sources import JournalInput, Start, next_arrival
from gazette_aio.message.uuid import clock_from_datetime
from gazette_aio.protocol.errors import (
    ConfigurationError,
    FramingError,
    GazetteError,
    OffsetJumpError,
    ReplayError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gazette_aio.client import JournalClient, RetryReader
    from gazette_aio.message.adapters.base import Adapter
    from gazette_aio.message.envelope import Envelope

T = TypeVar("T")

RING_BYTES = 64 << 20
"""Limit of what the ring of an iterator's own sequencer retains."""


class ReadUncommittedIter(MessageIterator[T]):
    """Iterates over all messages of a journal, as they are in it.

    Duplicates, messages which are pending or rolled back, and acknowledgements are all delivered.

    Args:
        source: A reader, which stays at its own offset and is closed along with the iterator; or
            the name of a journal, or several names.
        adapter: Decodes messages.
        client: Client to read journals by name.
        block: Wait for new messages of journals read by name. Otherwise iteration ends once all
            of them were read up to their write heads.
        start: Offsets to start journals read by name at, or an aware datetime: fragments older
            than it, and messages with older clocks, are left out. By default, all is read.
        on_error: Whether frames which can't be decoded raise a FramingError, behind which
            iteration may go on; or are skipped, and counted as `skipped`.
        skip_acks: Leave out acknowledgements.
        strict_uuid: Refuse UUIDs which aren't of version 1.
        max_frame_bytes: Limit of the length of one message.
        buffer_bytes: Limit of content which is read ahead of several journals.

    Raises:
        ConfigurationError: If arguments contradict each other.
    """

    def __init__(
        self,
        source: RetryReader | str | Iterable[str],
        adapter: Adapter[T],
        *,
        client: JournalClient | None = None,
        block: bool = False,
        start: Start = None,
        on_error: Literal["raise", "skip"] = "raise",
        skip_acks: bool = False,
        strict_uuid: bool = False,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
    ) -> None:
        super().__init__(
            source,
            adapter,
            client=client,
            block=block,
            start=start,
            on_error=on_error,
            skip_acks=skip_acks,
            strict_uuid=strict_uuid,
            max_frame_bytes=max_frame_bytes,
            buffer_bytes=buffer_bytes,
        )
        self._start_clock = clock_from_datetime(start) if isinstance(start, datetime) else 0
        self._run: Sequence[Envelope[Any]] = ()
        self._run_at = 0

    def _advance(self) -> bool:
        if self._run_at >= len(self._run):
            self._run, self._run_at = self._next_run(), 0
            if self._start_clock:
                self._run = [
                    env for env in self._run if env.clock == 0 or env.clock >= self._start_clock
                ]
        if self._inputs and self._inputs[0].splitter.decodes:
            wanted = (env for env in self._run if not (self._skip_acks and env.flags == 2))
            self._ready.extend(wanted)
            self._run_at = len(self._run)
        else:
            self._run_at = self._decode(self._run, self._run_at)
        return bool(self._ready)

    def _passed(self, error: FramingError) -> None:
        if error.kind == "decode":
            self._run_at += 1


class ReadCommittedIter(MessageIterator[T]):
    """Iterates over the committed messages of journals, in the order they commit, each once.

    Acknowledgements are delivered as well, unless `skip_acks` is set: they tell where transactions
    end. Their message is None if it can't be decoded as others are.

    A transaction larger than the sequencer's ring is read again once it commits. Messages are
    decoded once they're committed, so that one which can't be decoded raises at that point, and one
    which never commits doesn't.

    Args:
        source: A reader, which stays at its own offset and is closed along with the iterator; or
            the name of a journal, or several names, all read at once.
        adapter: Decodes messages.
        client: Client to read journals by name.
        block: Wait for new messages of journals read by name. Otherwise iteration ends once all
            of them were read up to their write heads.
        sequencer: Sequencer to use, by default one whose ring is limited to 64 MiB. Journals read
            by name start at its offsets.
        checkpoint: What to go on from. Journals read by name start at its offsets.
        start: Offsets to start journals read by name at, where the checkpoint has none; or an aware
            datetime: fragments older than it, and messages with older clocks, are left out.
        on_error: Whether frames which can't be decoded raise a FramingError, behind which
            iteration may go on; or are skipped, and counted as `skipped`.
        skip_acks: Leave out acknowledgements.
        strict_uuid: Refuse UUIDs which aren't of version 1.
        max_frame_bytes: Limit of the length of one message.
        buffer_bytes: Limit of content which is read ahead of several journals.
        allow_replay_gaps: Go on if content of a transaction is no longer there when it's read
            again, and so leave out its messages.

    Raises:
        ConfigurationError: If arguments contradict each other.
    """

    def __init__(
        self,
        source: RetryReader | str | Iterable[str],
        adapter: Adapter[T],
        *,
        client: JournalClient | None = None,
        block: bool = False,
        sequencer: Sequencer | None = None,
        checkpoint: SequencerCheckpoint | None = None,
        start: Start = None,
        on_error: Literal["raise", "skip"] = "raise",
        skip_acks: bool = False,
        strict_uuid: bool = False,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        allow_replay_gaps: bool = False,
    ) -> None:
        if sequencer is not None and checkpoint is not None:
            raise ConfigurationError("a sequencer has its own checkpoint")
        if sequencer is not None and sequencer.emitting:
            # What it delivered already is known to the iterator which took it, and nobody else.
            raise ConfigurationError("the sequencer is within a commit: go on from its checkpoint")
        super().__init__(
            source,
            adapter,
            client=client,
            block=block,
            start=start,
            on_error=on_error,
            skip_acks=skip_acks,
            strict_uuid=strict_uuid,
            max_frame_bytes=max_frame_bytes,
            buffer_bytes=buffer_bytes,
        )
        self.sequencer = sequencer or Sequencer.from_checkpoint(
            checkpoint or SequencerCheckpoint(), buffer_bytes=RING_BYTES
        )
        self._allow_replay_gaps = allow_replay_gaps
        self._start_clock = clock_from_datetime(start) if isinstance(start, datetime) else 0
        self._run: Sequence[Envelope[Any]] = ()  # Read, and queued up to an index.
        self._queued = 0
        self._taken: list[Envelope[Any]] | None = None  # Committed, and decoded up to an index.
        self._decoded = 0
        self._replay: JournalInput | None = None
        self._replay_failure: ReplayError | None = None
        self._replayed: list[RetryReader] = []  # Of replays which ended, to be closed.
        self._check_start()

    def _check_start(self) -> None:
        reader = self._reader
        if reader is None:
            return
        through = self.sequencer.offsets.get(str(reader.journal))
        if through is not None and reader.offset > through:
            raise ConfigurationError(
                f"reader of {reader.journal} starts at {reader.offset}, behind the checkpoint's "
                f"{through}"
            )

    def checkpoint(self, prune_horizon: timedelta | int = 0) -> SequencerCheckpoint:
        """Return a checkpoint of what was delivered.

        An iterator which goes on from it repeats nothing and leaves nothing out.

        It may be called whenever no call for the next message is under way.

        Args:
            prune_horizon: Forget producers whose largest clock is older by this than the newest
                acknowledgement of their journal: nanoseconds, or a timedelta. Zero keeps all.
        """
        taken = self._taken
        if taken is not None:
            delivered = self._decoded
            if self._ready:
                delivered = bisect_left(taken, self._ready[0].begin, key=_begin_of)
            self.sequencer.settle(delivered)
            if delivered == len(taken):
                self._taken = None
        return self.sequencer.checkpoint(prune_horizon, include_dequeued=True)

    def _start_offsets(self) -> dict[str, int]:
        return self.sequencer.offsets

    def _advance(self) -> bool:
        sequencer = self.sequencer
        while not self._ready and self._stopped is None:
            taken = self._taken
            if taken is not None:
                if self._decoded < len(taken):
                    self._deliver(taken)
                    continue
                sequencer.settle(len(taken))
                self._taken = None
            elif sequencer.emitting:
                if sequencer.replay_required or self._replay is not None:
                    if not self._advance_replay():
                        return False
                    continue
                self._taken = sequencer.take()
                self._decoded = 0
            elif self._queued < len(self._run):
                self._queued = sequencer.queue_batch(self._run, self._queued)
            else:
                self._run, self._queued = (), 0
                self._run = self._next_run()
                if not self._run:
                    return False
        return bool(self._ready)

    def _deliver(self, taken: list[Envelope[Any]]) -> None:
        if self._inputs[0].splitter.decodes:
            self._ready.extend(env for env in taken if not (self._skip_acks and env.flags == 2))
            self._decoded = len(taken)
        else:
            self._decoded = self._decode(taken, self._decoded)
        if self._start_clock:
            bound = self._start_clock
            kept = [env for env in self._ready if env.clock == 0 or env.clock >= bound]
            self._ready.clear()
            self._ready.extend(kept)

    def _passed(self, error: FramingError) -> None:
        if self._taken is not None and error.kind == "decode":
            self._decoded += 1

    def _explain(self, error: FramingError) -> FramingError:
        text = f"reading uncommitted message: {error.text}"
        return type(error)(
            text, journal=error.journal, begin=error.begin, end=error.end, kind=error.kind
        )

    def _advance_replay(self) -> bool:
        """Take the next messages of a replay, and return whether there was content at hand."""
        replay = self._replay
        if replay is None or self._replay_failure is not None:
            return False
        while True:
            try:
                run = replay.splitter.next_run()
            except FramingError:
                # It was raised when the frame was first read, and passed over then.
                continue
            break
        if not run:
            return False
        try:
            self._taken = self.sequencer.take_replay(run) or None
        except ReplayError as error:
            self._replay_failure = error
            return False
        self._decoded = 0
        return True

    async def _more(self) -> None:
        if not self.sequencer.emitting:
            await self._next_content()
            return
        try:
            await self._next_replay_content()
        except GazetteError as error:
            self._end_replay()
            self.sequencer.abort_replay()
            raise ReplayError(f"reading committed message: {error}") from error

    async def _next_replay_content(self) -> None:
        await asyncio.sleep(0)
        await self._close_replayed()
        failure, self._replay_failure = self._replay_failure, None
        if failure is not None:
            raise failure
        replay = self._replay
        if replay is None:
            wanted = self.sequencer.replay_range()
            source = next(i for i in self._inputs if i.splitter.journal == wanted.journal)
            self._replay = source.replay(self.adapter, wanted.begin, wanted.end)
            self.sequencer.start_replay()
            return
        splitter = replay.splitter
        arrival = await next_arrival(replay)
        gap = isinstance(arrival.error, OffsetJumpError) and self._allow_replay_gaps
        if arrival.error is not None and not gap:
            raise ReplayError(f"replay reader: {arrival.error}") from arrival.error
        if gap:
            splitter.jump(replay.reader.offset)
        elif not arrival.ended:
            splitter.feed(arrival.chunk, arrival.begin)
        else:
            splitter.end()
            try:
                splitter.next_run()
            except FramingError as error:
                raise ReplayError(f"replay reader: {error}") from error
            self.sequencer.finish_replay()
            self._end_replay()
            await self._close_replayed()

    def _end_replay(self) -> None:
        replay, self._replay = self._replay, None
        if replay is not None:
            self._replayed.append(replay.reader)

    async def _close_replayed(self) -> None:
        # Race: a reader stays listed until it's closed, should that be cancelled.
        while self._replayed:
            await self._replayed[-1].aclose()
            self._replayed.pop()

    async def aclose(self) -> None:
        """End reading, of a reader which was handed in, too. Idempotent.

        Cancellation: safe — call again.
        """
        await super().aclose()
        self._end_replay()
        await self._close_replayed()


def _begin_of(envelope: Envelope[Any]) -> int:
    return envelope.begin
