"""Async iterators of the messages of journals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from gazette_aio.aio.owner import Owner
from gazette_aio.message.reading.batches import EnvelopeBatch
from gazette_aio.message.reading.driver import TURN, FlowDriver
from gazette_aio.message.reading.envelopes import EnvelopeEngine
from gazette_aio.message.reading.options import DEFAULT_BUFFER_BYTES, check_options
from gazette_aio.message.reading.sources import ReaderSource, open_source
from gazette_aio.message.sequencing.checkpoint import SequencerCheckpoint
from gazette_aio.message.sequencing.sequencer import Sequencer
from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Unpack

    import pyarrow as pa

    from gazette_aio.message.adapters.base import Adapter
    from gazette_aio.message.columnar.journals import RecordsByJournal
    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.reading.arrow import ArrowBatches
    from gazette_aio.message.reading.flow import Engine
    from gazette_aio.message.reading.options import ReadOptions
    from gazette_aio.message.reading.sources import SourceArgument
    from gazette_aio.protocol.errors import FramingError

T = TypeVar("T")

RING_BYTES = 64 << 20
"""Limit of what the ring of an iterator's own sequencer retains."""


class MessageIterator(Owner, Generic[T]):
    """Base of iterators of messages.

    Messages are split, sequenced and decoded in runs of a chunk of content, and delivered from a
    queue without touching the event loop. Only an empty queue suspends.
    """

    def __init__(
        self,
        source: SourceArgument,
        envelopes: EnvelopeEngine[T],
        options: ReadOptions,
        *,
        allow_replay_gaps: bool = False,
    ) -> None:
        check_options(options)
        self.adapter: Adapter[T] = envelopes.adapter
        self._source = open_source(source, options)
        self._options = options
        self._allow_replay_gaps = allow_replay_gaps
        self._envelopes = envelopes
        self._ready = envelopes.ready
        self._records: RecordsByJournal | None = None
        self._driver: FlowDriver[Any, Any] = self._drive(type(self).__name__, envelopes)

    def _drive(
        self, name: str, engine: Engine[Any, Any], batch_bytes: int = 0
    ) -> FlowDriver[Any, Any]:
        buffer_bytes = self._options.get("buffer_bytes", DEFAULT_BUFFER_BYTES)
        return FlowDriver(
            name,
            self._source,
            engine,
            buffer_bytes=max(buffer_bytes, 2 * batch_bytes),
            read_ahead=batch_bytes > 0,
            allow_replay_gaps=self._allow_replay_gaps,
        )

    @property
    def skipped(self) -> int:
        """Number of messages and frames which `on_error="skip"` skipped."""
        return (self._records or self._envelopes).skipped

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Envelope[T]:
        """Return the next message.

        Cancellation: safe.

        Raises:
            FramingError: Content of a journal can't be read, split or decoded. Iteration may go on
                behind it.
            ReplayError: Content of a transaction can't be read again. Iteration tries once more.
        """
        ready = self._ready
        if not ready:
            await self._fill()
        return ready.popleft()

    async def _fill(self) -> None:
        if self._records is not None:
            raise RuntimeError("messages are read by arrow(), and in no other form")
        await self._driver.next()

    def batches(self) -> Batches[T]:
        """Return an async iterator of the same messages, as lists of what's ready at once.

        Each list has at least one message and at most about a thousand, all of one journal. Both
        ways of iteration may be used in turn.
        """
        return Batches(self)

    async def next_batch(self) -> EnvelopeBatch[T]:
        """Return the next messages as a non-empty list, all of one journal.

        Cancellation: safe.

        Raises:
            StopAsyncIteration: At the end of content.
            FramingError: As of iteration.
            ReplayError: As of iteration.
        """
        ready, driver = self._ready, self._driver
        if not ready:
            await self._fill()
        batch: EnvelopeBatch[T] = EnvelopeBatch()
        while ready:
            batch.extend(ready)
            ready.clear()
            if len(batch) < TURN:
                driver.flow.work()
        driver.unpaused += len(batch)
        return batch

    def arrow(
        self,
        schema: pa.Schema | None = None,
        *,
        acks: bool = False,
        batch_bytes: int = 4 << 20,
        max_pending_bytes: int = 64 << 20,
    ) -> ArrowBatches:
        """Return an async iterator of the same messages, as Arrow record batches.

        Each batch is of one journal. Its columns are `_journal`, `_begin`, `_end`, `_timestamp` (of
        the clock), `_clock`, `_producer` and `_flags`; and then `_value`, the bytes of the message,
        or the columns of its document.

        The first call of a process imports pyarrow, unless that's done: some 100 ms.

        It's the only form of iteration from then on. `checkpoint()`, `skipped` and `aclose()` of
        this iterator are those of the batches.

        Args:
            schema: Columns of documents. See the guide for what their types take.
            acks: Whether acknowledgements are rows, too. Columns of documents are null in them.
            batch_bytes: Content which is split, sequenced and decoded at once. A batch is larger
                if it commits messages of transactions which began before.
            max_pending_bytes: Limit of the messages which are retained as they may commit. A
                transaction which outgrows it is read again once it commits.

        Raises:
            ConfigurationError: If pyarrow isn't installed, or documents of the adapter can't have
                columns of the schema.
            RuntimeError: If messages were read in another form.
        """
        if self._records is not None or self._driver.is_used:
            raise RuntimeError("messages were read in another form: arrow() is the only one")
        try:
            from gazette_aio.message.reading.arrow import ArrowBatches, records_of  # noqa: PLC0415
        except ImportError as error:
            text = "Arrow batches take pyarrow (pip install gazette-aio[arrow])"
            raise ConfigurationError(text) from error
        self._records = records = records_of(
            self.adapter,
            schema,
            self._options,
            self._known(),
            acks=acks,
            batch_bytes=batch_bytes,
            max_pending_bytes=max_pending_bytes,
            explain=self._envelopes.explain,
        )
        self._driver = self._drive(ArrowBatches.__name__, records, batch_bytes)
        return ArrowBatches(self._driver, records)

    def _known(self) -> SequencerCheckpoint | None:
        """Return what batches go on from; or None if messages needn't be committed."""
        return None

    async def aclose(self) -> None:
        """End reading, of a reader which was handed in, too. Idempotent.

        Cancellation: safe — call again.
        """
        # Invariant: a checkpoint is as of what was delivered, also if it's asked for later.
        self._envelopes.drop()
        await self._driver.aclose()

    def __repr__(self) -> str:
        return repr(self._driver)


class Batches(Generic[T]):
    """Async iterator of lists of messages. Made by `batches()`."""

    def __init__(self, iterator: MessageIterator[T]) -> None:
        self._iterator = iterator

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EnvelopeBatch[T]:
        return await self._iterator.next_batch()


class ReadUncommittedIter(MessageIterator[T]):
    """Iterates over all messages of journals, as they are in them.

    Duplicates, pending and rolled back messages, and acknowledgements are all delivered.

    Args:
        source: Journals to read, as of a ReadCommittedIter.
        adapter: Decodes messages.
        options: See `ReadOptions`.

    Raises:
        ConfigurationError: If arguments contradict each other.
    """

    def __init__(
        self, source: SourceArgument, adapter: Adapter[T], **options: Unpack[ReadOptions]
    ) -> None:
        envelopes = EnvelopeEngine(adapter, None, options, explain=lambda error: error)
        super().__init__(source, envelopes, options)


class ReadCommittedIter(MessageIterator[T]):
    """Iterates over the committed messages of journals, each once, in the order they commit.

    Acknowledgements, which end transactions, are delivered as well, unless `skip_acks` is set. The
    message of an acknowledgement is None if it can't be decoded as others are. Messages are decoded
    once they're committed: a bad message which never commits doesn't raise.

    A transaction larger than the sequencer's ring is read again once it commits.

    Several journals are read at once, and take turns, a chunk of content each. Order is kept within
    a journal, not among journals. At most 16 journals which lag behind their write heads are read
    at a time, for some MiB each while others wait, or up to the end of a compressed fragment.

    The journals of a selector may change while they're read. A journal which joins is read from its
    offset in the checkpoint, else from `start`. A journal which leaves is read until nothing more
    comes at once, or up to its write head. Its state stays in checkpoints, and reading goes on from
    there if it joins again. A journal which was deleted and created anew is read from its begin, if
    that's seen while iterating. Iteration ends once the list which is read is closed, and all of
    its journals have left.

    Journals of a selector which aren't found, or are suspended, are waited for, or left out unless
    `block` is set. A journal without read permission raises once, and is waited for until its
    specification is applied anew. One of a content type without a framing raises once.

    Args:
        source: A reader, which stays at its own offset and is closed along with the iterator; the
            name of a journal, or several names; a selector of journals; or a WatchedList or
            PolledList, which may be shared with others, or is entered and closed here.
        adapter: Decodes messages.
        sequencer: Sequencer to use, by default one whose ring is limited to 64 MiB. Between two
            messages, a given sequencer is at the transaction being delivered, which is slower.
            Journals start at its offsets, but for a reader.
        checkpoint: State to go on from. Journals start at its offsets, but for a reader.
        allow_replay_gaps: Go on if content of a transaction is no longer there when it's read
            again, and so leave out its messages.
        options: See `ReadOptions`.

    Raises:
        ConfigurationError: If arguments contradict each other.
    """

    def __init__(
        self,
        source: SourceArgument,
        adapter: Adapter[T],
        *,
        sequencer: Sequencer | None = None,
        checkpoint: SequencerCheckpoint | None = None,
        allow_replay_gaps: bool = False,
        **options: Unpack[ReadOptions],
    ) -> None:
        if sequencer is not None and checkpoint is not None:
            raise ConfigurationError("a sequencer has its own checkpoint")
        if sequencer is not None and sequencer.emitting:
            # What it delivered already is known to the iterator which took it, and nobody else.
            raise ConfigurationError("the sequencer is within a commit: go on from its checkpoint")
        self._is_own = sequencer is None
        self.sequencer = sequencer or Sequencer.from_checkpoint(
            checkpoint or SequencerCheckpoint(), buffer_bytes=RING_BYTES
        )
        """Says which messages commit."""
        envelopes = EnvelopeEngine(
            adapter,
            self.sequencer,
            options,
            transactions=self._is_own,
            explain=_explain_uncommitted,
        )
        super().__init__(source, envelopes, options, allow_replay_gaps=allow_replay_gaps)
        if isinstance(self._source, ReaderSource):
            reader = self._source.reader
            through = self.sequencer.offsets.get(str(reader.journal))
            if through is not None and reader.offset > through:
                text = f"starts at {reader.offset}, behind the checkpoint's {through}"
                raise ConfigurationError(f"reader of {reader.journal} {text}")

    def checkpoint(self, prune_horizon: timedelta | int = 0) -> SequencerCheckpoint:
        """Return a checkpoint of what was delivered.

        An iterator which goes on from it repeats nothing and leaves nothing out. It may be called
        whenever no call for the next message is under way.

        Args:
            prune_horizon: Forget producers whose largest clock is older by this than the newest
                acknowledgement of their journal: nanoseconds, or a timedelta. Zero keeps all.
        """
        if self._records is not None:
            return self._records.checkpoint(prune_horizon)
        self._envelopes.settle()
        return self.sequencer.checkpoint(prune_horizon, include_dequeued=True)

    def _known(self) -> SequencerCheckpoint:
        if not self._is_own:
            text = "a sequencer can't be that of Arrow batches: go on from its checkpoint"
            raise ConfigurationError(text)
        return self.sequencer.checkpoint()


def _explain_uncommitted(error: FramingError) -> FramingError:
    text = f"reading uncommitted message: {error.text}"
    return type(error)(
        text, journal=error.journal, begin=error.begin, end=error.end, kind=error.kind
    )
