"""Iterators of the messages of journals."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from gazette_aio.aio.closing import Closing
from gazette_aio.message.framing import DEFAULT_MAX_FRAME_BYTES
from gazette_aio.message.reading.base import DEFAULT_BUFFER_BYTES, MessageIterator
from gazette_aio.message.reading.replay import Replay
from gazette_aio.message.reading.sources import ReaderSource, SelectedSource, Start
from gazette_aio.message.sequencing.checkpoint import SequencerCheckpoint
from gazette_aio.message.sequencing.sequencer import Sequencer
from gazette_aio.protocol.errors import (
    ConfigurationError,
    FramingError,
    GazetteError,
    JournalNotFoundError,
    ReplayError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta

    import gazette_aio.protocol as pb
    from gazette_aio.client import JournalClient, RetryReader, WatchedList
    from gazette_aio.message.adapters.base import Adapter
    from gazette_aio.message.envelopes.envelope import Envelope

T = TypeVar("T")

RING_BYTES = 64 << 20
"""Limit of what the ring of an iterator's own sequencer retains."""


class ReadUncommittedIter(MessageIterator[T]):
    """Iterates over all messages of a journal, as they are in it.

    Duplicates, messages which are pending or rolled back, and acknowledgements are all delivered.

    Several journals, and those of a selector, are read as by a ReadCommittedIter.

    Args:
        source: A reader, which stays at its own offset and is closed along with the iterator; the
            name of a journal, or several names; a selector of journals; or a WatchedList or
            PolledList, which may be shared with others, or is entered and closed here.
        adapter: Decodes messages.
        client: Client to read journals by name or selector.
        block: Wait for new messages, and journals which join. Otherwise iteration ends once all
            journals were read up to their write heads, those of a selector as listed at first.
        start: Offsets to start journals at, or an aware datetime: fragments older than it, and
            messages with older clocks, are left out. By default, all is read.
        on_error: Whether frames which can't be decoded raise a FramingError, behind which
            iteration may go on; or are skipped, and counted as `skipped`.
        skip_acks: Leave out acknowledgements.
        strict_uuid: Refuse UUIDs which aren't of version 1.
        max_frame_bytes: Limit of the length of one message.
        buffer_bytes: Limit of content which is read ahead, over all of several journals.
        direct: Whether to fetch files of fragments from their stores, rather than through a broker.

    Raises:
        ConfigurationError: If arguments contradict each other.
    """

    def __init__(
        self,
        source: RetryReader | str | Iterable[str] | pb.LabelSelector | WatchedList,
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
        direct: bool | None = None,
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
            direct=direct,
        )
        self._run: Sequence[Envelope[Any]] = ()
        self._run_at = 0

    def _advance(self) -> bool:
        if self._run_at >= len(self._run):
            self._run, self._run_at = self._next_run(), 0
            if self._start_clock:
                self._run = [
                    env for env in self._run if env.clock == 0 or env.clock >= self._start_clock
                ]
        if self._decodes:
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

    Several journals are read at once, and take turns in delivering what's at hand, a chunk of
    content each. No more than 16 of those which are behind their write heads are read at a time,
    for some MiB each while others wait, or up to the end of a compressed fragment. An order is kept
    within a journal, not among them.

    The journals of a selector may change while they're read. One which joins is read from where
    the checkpoint has it, else from `start`; one of a content type without a framing raises, once,
    and the others go on. One which leaves is read until nothing more comes at once, up to its
    write head if it's behind that. What's known of it stays in checkpoints, and it goes on from
    there if it joins again; but one that was deleted and created anew is read from its start, if
    that's seen while iterating. Closing the list which is read has all its journals leave, and
    ends iteration.

    Journals of a selector which aren't found, or are suspended, are waited for, or left out if not
    to `block`. One which may only be written raises once, and is waited for then until its
    specification is applied anew.

    Args:
        source: A reader, which stays at its own offset and is closed along with the iterator; the
            name of a journal, or several names; a selector of journals; or a WatchedList or
            PolledList, which may be shared with others, or is entered and closed here.
        adapter: Decodes messages.
        client: Client to read journals by name or selector.
        block: Wait for new messages, and journals which join. Otherwise iteration ends once all
            journals were read up to their write heads, those of a selector as listed at first.
        sequencer: Sequencer to use, by default one whose ring is limited to 64 MiB. Journals start
            at its offsets, but for a reader. One which is handed in is at the transaction that's
            being delivered, which is slower.
        checkpoint: What to go on from. Journals start at its offsets, but for a reader.
        start: Offsets to start journals at, where the checkpoint has none; or an aware datetime:
            fragments older than it, and messages with older clocks, are left out.
        on_error: Whether frames which can't be decoded raise a FramingError, behind which
            iteration may go on; or are skipped, and counted as `skipped`.
        skip_acks: Leave out acknowledgements.
        strict_uuid: Refuse UUIDs which aren't of version 1.
        max_frame_bytes: Limit of the length of one message.
        buffer_bytes: Limit of content which is read ahead, over all of several journals.
        direct: Whether to fetch files of fragments from their stores, rather than through a broker.
        allow_replay_gaps: Go on if content of a transaction is no longer there when it's read
            again, and so leave out its messages.

    Raises:
        ConfigurationError: If arguments contradict each other.
    """

    def __init__(
        self,
        source: RetryReader | str | Iterable[str] | pb.LabelSelector | WatchedList,
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
        direct: bool | None = None,
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
            direct=direct,
        )
        self._has_sequencer = sequencer is not None
        self.sequencer = sequencer or Sequencer.from_checkpoint(
            checkpoint or SequencerCheckpoint(), buffer_bytes=RING_BYTES
        )
        self._allow_replay_gaps = allow_replay_gaps
        self._run: Sequence[Envelope[Any]] = ()  # Read, and queued up to an index.
        self._queued = 0
        self._taken: list[Envelope[Any]] | None = None  # Committed, and decoded up to an index.
        self._decoded = self._settled = 0
        self._replay: Replay | None = None
        self._replay_failure: ReplayError | None = None
        self._replayed = Closing()  # Readers of replays which ended.
        self._check_start()

    def _check_start(self) -> None:
        if not isinstance(self._source, ReaderSource):
            return
        reader = self._source.reader
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
        if self._arrow is not None:
            return self._arrow.checkpoint(prune_horizon)
        taken = self._taken
        if taken is not None:
            delivered = self._decoded
            if self._ready:
                following = self._ready[0]
                at = range(self._settled, delivered)
                delivered = next(index for index in at if taken[index] is following)
            self._settled = delivered
            self.sequencer.settle(delivered)
            if delivered == len(taken):
                self._taken = None
        return self.sequencer.checkpoint(prune_horizon, include_dequeued=True)

    def _arrow_checkpoint(self) -> SequencerCheckpoint:
        if self._has_sequencer:
            raise ConfigurationError(
                "a sequencer can't be that of Arrow batches: go on from its checkpoint"
            )
        return self.sequencer.checkpoint()

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
                self._decoded = self._settled = 0
            elif self._queued < len(self._run):
                # Whoever handed a sequencer in finds it at the transaction which is delivered.
                self._queued = sequencer.queue_commits(
                    self._run, self._queued, transactions=not self._has_sequencer
                )
            else:
                self._run, self._queued = (), 0
                self._run = self._next_run()
                if not self._run:
                    return False
        return bool(self._ready)

    def _deliver(self, taken: list[Envelope[Any]]) -> None:
        if self._decodes:
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

    @staticmethod
    def _explain(error: FramingError) -> FramingError:
        text = f"reading uncommitted message: {error.text}"
        return type(error)(
            text, journal=error.journal, begin=error.begin, end=error.end, kind=error.kind
        )

    def _advance_replay(self) -> bool:
        """Take the next messages of a replay, and return whether there was content at hand."""
        replay = self._replay
        if replay is None or self._replay_failure is not None:
            return False
        run = replay.next_run()
        if not run:
            return False
        try:
            self._taken = self.sequencer.take_replay(run) or None
        except ReplayError as error:
            self._replay_failure = error
            return False
        self._decoded = self._settled = 0
        return True

    async def _more(self) -> None:
        if not self.sequencer.emitting:
            await self._next_content()
            return
        try:
            await self._next_replay_content()
        except GazetteError as error:
            self._end_replay()
            if not self.sequencer.replay_required:
                self.sequencer.abort_replay()
            if self._closed:
                raise StopAsyncIteration from None
            self._give_up_deleted(error)
            raise ReplayError(f"reading committed message: {error}") from error

    def _give_up_deleted(self, error: GazetteError) -> None:
        """Go without the rest of a commit, if its journal was deleted and others are read."""
        source = self._current
        if source is None or not isinstance(self._source, SelectedSource):
            return
        if source.is_void or isinstance(error.__cause__, JournalNotFoundError):
            self._inputs.abandon(source)
            self._current = None
            self._run, self._queued = (), 0
            self._forget(source.journal)

    def _forget(self, journal: str) -> None:
        self.sequencer.forget(journal)

    async def _next_replay_content(self) -> None:
        await asyncio.sleep(0)
        await self._replayed.aclose()
        failure, self._replay_failure = self._replay_failure, None
        if failure is not None:
            raise failure
        source = self._current
        assert source is not None, "only messages of what's being read commit"
        if source.is_void:
            raise ReplayError(f"replay reader: {source.journal} was created anew")
        if self._replay is None:
            wanted = self.sequencer.replay_range()
            splitter = self._make_splitter(wanted.journal, source.framing, wanted.begin)
            reader = source.replaying = source.replay(wanted.begin, wanted.end)
            self._replay = Replay(reader, splitter, allow_gaps=self._allow_replay_gaps)
            self.sequencer.start_replay()
        elif not await self._replay.receive():
            self.sequencer.finish_replay()
            self._end_replay()
            await self._replayed.aclose()

    def _end_replay(self) -> None:
        replay, self._replay = self._replay, None
        if replay is not None:
            self._replayed.add(replay.reader)

    async def aclose(self) -> None:
        """End reading, of a reader which was handed in, too. Idempotent.

        Cancellation: safe — call again.
        """
        await super().aclose()
        self._end_replay()
        await self._replayed.aclose()
