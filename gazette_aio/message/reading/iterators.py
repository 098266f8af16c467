"""Async iterators of the messages of journals."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from gazette_aio.aio.owner import Owner
from gazette_aio.message.envelopes.content import DEFAULT_PENDING_BYTES
from gazette_aio.message.envelopes.envelope import Envelope
from gazette_aio.message.reading.envelopes import LEAST_AT_ONCE, EnvelopeEngine
from gazette_aio.message.reading.formats import JournalFormats
from gazette_aio.message.reading.inputs import Inputs
from gazette_aio.message.reading.options import DEFAULT_BUFFER_BYTES, check_options
from gazette_aio.message.reading.reader import OutputReader
from gazette_aio.message.reading.sequenced import SequencedEngine
from gazette_aio.message.reading.sources import ReaderSource, open_source
from gazette_aio.message.sequencing.checkpoint import SequencerCheckpoint
from gazette_aio.protocol.errors import ConfigurationError, UsageError

if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Unpack

    import pyarrow as pa

    from gazette_aio.message.adapters.base import Adapter, AdapterBySpec
    from gazette_aio.message.columns.uuids import UuidColumns
    from gazette_aio.message.reading.arrow import ArrowBatches
    from gazette_aio.message.reading.engine import JournalEngine
    from gazette_aio.message.reading.options import ReadOptions
    from gazette_aio.message.reading.sources import SourceArgument
    from gazette_aio.message.sequencing.sequencer import Sequencer
    from gazette_aio.protocol.errors import FramingError

T = TypeVar("T")


class MessageIterator(Owner, Generic[T]):
    """Base of iterators of messages.

    Messages are split, sequenced and decoded in runs of a chunk of content, and delivered from a
    queue without involving the event loop. Only an empty queue suspends.
    """

    def __init__(
        self,
        source: SourceArgument,
        adapter: Adapter[T] | AdapterBySpec[T],
        engine: EnvelopeEngine[T],
        options: ReadOptions,
        *,
        allow_replay_gaps: bool = False,
    ) -> None:
        check_options(options)
        self._formats = JournalFormats(adapter)
        self._source = open_source(source, options)
        self._options = options
        self._allow_replay_gaps = allow_replay_gaps
        self._ready: deque[Envelope[T]] = deque()  # Returned by the reader, and not delivered yet.
        self._engine: JournalEngine[Any] = engine
        self._reader: OutputReader[Any] = OutputReader(
            type(self).__name__,
            self._inputs_of(engine),
            engine,
            allow_replay_gaps=allow_replay_gaps,
        )
        self._is_arrow = False

    def _inputs_of(self, engine: JournalEngine[Any], batch_bytes: int = 0) -> Inputs:
        buffer_bytes = self._options.get("buffer_bytes", DEFAULT_BUFFER_BYTES)
        return Inputs(
            self._source,
            self._formats,
            engine,
            buffer_bytes=max(buffer_bytes, 2 * batch_bytes),
            read_ahead=batch_bytes > 0,
        )

    @property
    def skipped(self) -> int:
        """Number of messages and frames that `on_error="skip"` skipped."""
        return self._engine.skipped

    @property
    def pending_bytes(self) -> int:
        """Bytes of pending messages that are retained, over all journals."""
        return self._engine.pending_bytes

    def __aiter__(self) -> Self:
        return self

    if not TYPE_CHECKING:  # Type checkers refuse a plain `for` themselves.

        def __iter__(self) -> None:
            name = type(self).__name__
            raise TypeError(f"{name} is an async iterator: write `async for`, not `for`")

    async def __anext__(self) -> Envelope[T]:
        """Return the next message.

        Raises:
            FramingError: Content of a journal can't be split or decoded. Iteration may continue
                after it.
            OffsetBeyondHeadError: A journal would be read from an offset beyond its write head.
            OperationTimeoutError: No broker could be reached, or served a journal, within the
                client's `timeout`. Iteration may continue.
            GazetteError: Another error of reading a journal, such as a JournalNotFoundError or a
                TransportError. Iteration may continue. A note names the journal and the offset.
            ReplayError: Content of a transaction can't be read again. Further calls return
                messages of other journals. The replay is retried when none of them is ready.

        Cancellation: safe.
        """
        ready = self._ready
        if not ready:
            await self._fill()
        return ready.popleft()

    async def _fill(self) -> None:
        if self._is_arrow:
            raise UsageError("messages are read by arrow(), and in no other form")
        self._ready.extend(await self._reader.next())

    def batches(self) -> Batches[T]:
        """Return an async iterator of the same messages, as lists of those ready at once.

        Each list has at least one message, and fewer than 200, all of one journal. Both forms of
        iteration may alternate.
        """
        return Batches(self)

    async def next_batch(self) -> EnvelopeBatch[T]:
        """Return the next messages as a non-empty list, all of one journal.

        Raises:
            StopAsyncIteration: At the end of content.
            GazetteError: As for iteration.

        Cancellation: safe.
        """
        if not self._ready:
            await self._fill()
        batch: EnvelopeBatch[T] = EnvelopeBatch(self._ready)
        self._ready.clear()
        while len(batch) < LEAST_AT_ONCE and (more := self._reader.next_nowait()) is not None:
            batch.extend(more)
        return batch

    def arrow(
        self,
        schema: pa.Schema | None = None,
        *,
        acks: bool = False,
        batch_bytes: int = 4 << 20,
        max_pending_bytes: int = DEFAULT_PENDING_BYTES,
    ) -> ArrowBatches:
        """Return an async iterator of the same messages, as Arrow record batches.

        Each batch is of one journal. Its columns are `_journal`, `_begin`, `_end`, `_timestamp` (of
        the clock), `_clock`, `_producer` and `_flags`, followed by `_value`, the bytes of the
        message, or by the columns of its document.

        The first call of a process imports pyarrow, which takes some 100 ms.

        No other form of iteration may follow. `checkpoint()`, `skipped` and `aclose()` of this
        iterator then are those of the batches.

        Args:
            schema: Columns of documents. See the guide for the types that each column accepts.
            acks: Whether acknowledgements are rows, too. Their columns of documents are null.
            batch_bytes: Content that is split, sequenced and decoded at once. A batch is larger
                if it commits messages of transactions that began earlier.
            max_pending_bytes: Limit of the pending messages that are retained. A transaction that
                outgrows it is read again when it commits.

        Raises:
            ConfigurationError: Pyarrow isn't installed, or the schema doesn't fit documents of
                the adapter. If each journal has its own adapter, iteration raises the latter.
            UsageError: Messages were read in another form.
        """
        if self._is_arrow or self._reader.is_used:
            raise UsageError("messages were read in another form: arrow() must be the only form")
        try:
            from gazette_aio.message.reading.arrow import (  # noqa: PLC0415
                ArrowBatches,
                RecordEngine,
                RecordReader,
            )
        except ImportError as error:
            text = "Arrow batches take pyarrow (pip install 'gazette-aio[arrow]')"
            raise ConfigurationError(text) from error
        self._engine = records = RecordEngine(
            self._formats.adapter,
            schema,
            self._resumed(),
            self._options,
            acks=acks,
            batch_bytes=batch_bytes,
            max_pending_bytes=max_pending_bytes,
            explain=self._engine.bad.explain,
        )
        self._reader = reader = RecordReader(
            ArrowBatches.__name__,
            self._inputs_of(records, batch_bytes),
            records,
            allow_replay_gaps=self._allow_replay_gaps,
        )
        self._is_arrow = True
        return ArrowBatches(reader, records)

    def _resumed(self) -> SequencerCheckpoint | None:
        """Return the state from which batches resume; None if uncommitted messages are read."""
        return None

    async def aclose(self) -> None:
        """End reading, and close a given reader, too. Idempotent.

        Cancellation: safe — call again.
        """
        # Invariant: even a later checkpoint covers only the delivered messages.
        self._reader.settle(self._ready)
        self._ready.clear()
        await self._reader.aclose()

    def __repr__(self) -> str:
        return repr(self._reader)


class EnvelopeBatch(list[Envelope[T]]):
    """Envelopes of one journal, in delivery order."""

    __slots__ = ()

    @property
    def messages(self) -> list[T]:
        """New list of the messages alone."""
        return [envelope.message for envelope in self]

    @property
    def columns(self) -> UuidColumns:
        """Producers, clocks, flags and offsets as numpy arrays. Each call makes new arrays.

        Raises:
            ConfigurationError: Numpy isn't installed.
        """
        try:
            from gazette_aio.message.columns.uuids import UuidColumns  # noqa: PLC0415
        except ImportError as error:
            text = "columns of messages take numpy (pip install 'gazette-aio[arrow]')"
            raise ConfigurationError(text) from error
        return UuidColumns.of(cast("list[Envelope[object]]", self))


class Batches(Generic[T]):
    """Async iterator of lists of messages, made by `batches()`."""

    def __init__(self, iterator: MessageIterator[T]) -> None:
        self._iterator = iterator

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EnvelopeBatch[T]:
        return await self._iterator.next_batch()


class ReadUncommittedIter(MessageIterator[T]):
    """Async iterator of all messages of journals, in journal order.

    Duplicates, pending and rolled back messages, and acknowledgements are all delivered.

    Args:
        source: Journals to read, as for ReadCommittedIter.
        adapter: Decodes messages, as for ReadCommittedIter.
        options: See `ReadOptions`.

    Raises:
        ConfigurationError: Arguments contradict each other.
    """

    def __init__(
        self,
        source: SourceArgument,
        adapter: Adapter[T] | AdapterBySpec[T],
        **options: Unpack[ReadOptions],
    ) -> None:
        engine: EnvelopeEngine[T] = EnvelopeEngine(None, options)
        super().__init__(source, adapter, engine, options)


class ReadCommittedIter(MessageIterator[T]):
    """Async iterator of the committed messages of journals, each once, in commit order.

    Acknowledgements, which end transactions, are delivered too, unless `skip_acks` is set. The
    message of an acknowledgement is None if the adapter can't decode it. Messages are decoded after
    they commit: a bad message that never commits doesn't raise.

    A transaction that outgrew the retained messages is read again when it commits.

    Several journals are read concurrently, and take turns, a chunk of content each. Order is kept
    within a journal, not among journals. At most 16 journals that lag behind their write heads are
    read concurrently. If others wait, each is read for some MiB, or to the end of a compressed
    fragment.

    The journals of a selector may change during iteration. A journal that joins is read from its
    offset in the checkpoint, else from `start`. A journal that leaves is read until no more content
    is at hand, or up to its write head. Its state stays in checkpoints, and reading resumes there
    if it joins again. A journal that was deleted and created anew is read from its beginning, if
    the iteration observes the change. Iteration ends after the list is closed and all of its
    journals have left.

    With `block`, journals of a selector that aren't found, or are suspended, are waited for;
    otherwise they're left out. A journal without read permission raises once, and is waited for
    until its specification is applied again. A content type without a framing raises once.

    Args:
        source: A reader, which keeps its own offset and is closed with the iterator; the name of a
            journal, or several names; a selector of journals; or a WatchedList or PolledList. An
            entered list may be shared; any other list is entered and closed by the iterator.
        adapter: Decodes messages; or a function of the specification of a journal, which returns
            the adapter of the journal's messages. It's called once per journal before
            reading starts, and again after the specification has changed. An error of the function
            is raised then: other journals of a selector are still read, and that journal is read
            after its specification is applied again.
        sequencer: Sequencer to use, message by message, which is slower. By default, up to 64 MiB
            of pending messages are retained. Journals start at its offsets, except for a reader.
        checkpoint: State to resume from. Journals start at its offsets, except for a reader.
        allow_replay_gaps: Continue if content of a transaction is gone when it's read again. Its
            messages are left out.
        options: See `ReadOptions`.

    Raises:
        ConfigurationError: Arguments contradict each other.
    """

    def __init__(
        self,
        source: SourceArgument,
        adapter: Adapter[T] | AdapterBySpec[T],
        *,
        sequencer: Sequencer | None = None,
        checkpoint: SequencerCheckpoint | None = None,
        allow_replay_gaps: bool = False,
        **options: Unpack[ReadOptions],
    ) -> None:
        if checkpoint is not None and not hasattr(checkpoint, "offsets"):
            raise ConfigurationError(
                f"checkpoint must be a SequencerCheckpoint, not {type(checkpoint).__name__}: "
                "SequencerCheckpoint.from_json() reads its text"
            )
        if sequencer is not None and checkpoint is not None:
            raise ConfigurationError("a sequencer has its own checkpoint: pass either of them")
        if sequencer is not None and sequencer.emitting:
            # Only the iterator that began the commit knows which of its messages it delivered.
            raise ConfigurationError("the sequencer is within a commit: resume from its checkpoint")
        self.sequencer = sequencer
        """The given sequencer, if any."""
        self._known = checkpoint or SequencerCheckpoint()
        engine: EnvelopeEngine[T]
        if sequencer is None:
            engine = EnvelopeEngine(
                self._known,
                options,
                max_pending_bytes=DEFAULT_PENDING_BYTES,
                explain=_explain_committed,
            )
        else:
            engine = SequencedEngine(sequencer, options, explain=_explain_committed)
        super().__init__(source, adapter, engine, options, allow_replay_gaps=allow_replay_gaps)
        if isinstance(self._source, ReaderSource):
            reader = self._source.reader
            through = engine.offsets().get(str(reader.journal))
            if through is not None and reader.offset > through:
                text = f"starts at {reader.offset}, behind the checkpoint's {through}"
                raise ConfigurationError(f"reader of {reader.journal} {text}")

    def checkpoint(self, prune_horizon: timedelta | int = 0) -> SequencerCheckpoint:
        """Return a checkpoint of the delivered messages.

        An iterator that resumes from it repeats and omits no message. Don't call this while a call
        for the next message is in progress.

        Args:
            prune_horizon: Forget producers whose largest clock is older by this than the newest
                acknowledgement of their journal: nanoseconds, or a timedelta. Zero keeps all.
        """
        self._reader.settle(self._ready)
        return self._engine.checkpoint(prune_horizon)

    def _resumed(self) -> SequencerCheckpoint:
        if self.sequencer is not None:
            text = "a sequencer can't be that of Arrow batches: go on from its checkpoint"
            raise ConfigurationError(text)
        return self._known


def _explain_committed(error: FramingError) -> FramingError:
    text = f"reading committed messages: {error.text}"
    explained = type(error)(
        text, journal=error.journal, begin=error.begin, end=error.end, kind=error.kind
    )
    explained.__cause__ = error.__cause__
    return explained
