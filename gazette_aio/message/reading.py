"""What iterators of messages have in common: a queue of messages which are ready."""

from __future__ import annotations

import asyncio
import logging
import warnings
from abc import ABC, abstractmethod
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

from gazette_aio.message.sources import (
    Arrival,
    JournalInput,
    MergedInputs,
    NamedSource,
    ReadOptions,
    Start,
    fetch_framings,
    named_source,
    next_arrival,
)
from gazette_aio.message.splitter import RUN_LIMIT, framing_error
from gazette_aio.protocol.errors import (
    ConfigurationError,
    FramingError,
    OffsetJumpError,
    OffsetNotYetAvailableError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from typing_extensions import TypeIs

    from gazette_aio.client import JournalClient, RetryReader
    from gazette_aio.message.adapters.base import Adapter
    from gazette_aio.message.envelope import Envelope

T = TypeVar("T")
_logger = logging.getLogger(__name__)

DEFAULT_BUFFER_BYTES = 4 << 20
"""Default limit of the content which is read ahead, over all journals of an iterator."""

_TURN = 512
"""Messages which are decoded and delivered before the event loop has a turn."""

_ACK = 2


class MessageIterator(ABC, Generic[T]):
    """Base of iterators of messages.

    Messages are split, sequenced and decoded in runs of a chunk of content, and delivered from a
    queue without touching the event loop. Only an empty queue suspends.
    """

    def __init__(
        self,
        source: RetryReader | str | Iterable[str],
        adapter: Adapter[T],
        *,
        client: JournalClient | None,
        block: bool,
        start: Start,
        on_error: Literal["raise", "skip"],
        skip_acks: bool,
        strict_uuid: bool,
        max_frame_bytes: int,
        buffer_bytes: int,
    ) -> None:
        if on_error not in {"raise", "skip"}:
            raise ConfigurationError(f"on_error is {on_error!r} (expected 'raise' or 'skip')")
        self.adapter: Adapter[T] = adapter
        self.skipped = 0
        """Number of frames which `on_error="skip"` skipped."""
        self._named: NamedSource | None = None
        self._reader: RetryReader | None = None
        if _is_reader(source):
            if start is not None or client is not None:
                raise ConfigurationError("a reader has its own client and offset")
            self._reader = source
        else:
            self._named = named_source(source, client, start, block=block)
        self._options = ReadOptions(strict_uuid, max_frame_bytes)
        self._skip_errors = on_error == "skip"
        self._skip_acks = skip_acks
        self._buffer_bytes = buffer_bytes
        self._ready: deque[Envelope[T]] = deque()
        self._stopped: FramingError | None = None  # Raised once what's ready is delivered.
        self._inputs: list[JournalInput] = []
        self._merged: MergedInputs | None = None
        self._open = 0  # Journals which didn't end.
        self._current: JournalInput | None = None  # Whose content may hold another run.
        self._resume: JournalInput | None = None
        self._unpaused = 0  # Messages which were delivered since the event loop had a turn.
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Envelope[T]:
        """Return the next message.

        Cancellation: safe.

        Raises:
            FramingError: Content of a journal can't be split or decoded, or read. Iteration may go
                on behind it.
        """
        ready = self._ready
        if not ready:
            await self._fill()
        return ready.popleft()

    def batches(self) -> Batches[T]:
        """Return an async iterator of the same messages, as lists of what's ready at once.

        Both may be used in turn.
        """
        return Batches(self)

    async def next_batch(self) -> list[Envelope[T]]:
        """Return the next messages as a non-empty list.

        Cancellation: safe.

        Raises:
            StopAsyncIteration: At the end of content.
            FramingError: As of iteration.
        """
        if not self._ready:
            await self._fill()
        batch = list(self._ready)
        self._ready.clear()
        try:
            while len(batch) < _TURN and self._stopped is None and self._advance():
                batch.extend(self._ready)
                self._ready.clear()
        except FramingError as error:
            self._stopped = error
        self._unpaused += len(batch)
        return batch

    async def _fill(self) -> None:
        """Make at least one message ready, or raise."""
        if self._closed:
            raise StopAsyncIteration
        if self._unpaused >= _TURN:
            # A loop over messages which are all at hand lets others have turns, too.
            self._unpaused = 0
            await asyncio.sleep(0)
        while True:
            stopped = self._stopped
            if stopped is not None:
                self._stopped = None
                self._passed(stopped)
                raise stopped
            if self._advance():
                self._unpaused += len(self._ready)
                return
            if self._stopped is None:
                await self._more()

    @abstractmethod
    def _advance(self) -> bool:
        """Do what takes no waiting, and return whether messages are ready."""

    async def _more(self) -> None:
        """Wait for something which lets `_advance()` go on."""
        await self._next_content()

    def _passed(self, error: FramingError) -> None:
        """Take note that `error` is about to be raised."""

    def _next_run(self) -> Sequence[Envelope[Any]]:
        """Return the next envelopes of the content at hand.

        It's empty if there are none; or if many frames were skipped, for a pause.
        """
        current = self._current
        pause_at = self.skipped + RUN_LIMIT
        while current is not None and self.skipped < pause_at:
            try:
                run = current.splitter.next_run()
            except FramingError as error:
                if not self._skip_errors:
                    raise self._explain(error) from error.__cause__
                self._skip(error)
                if error.kind != "unexpected_eof":
                    continue
                run = []
            if not run:
                self._current = None
            return run
        return []

    async def _next_content(self) -> None:
        """Wait for more content, unless there's some at hand."""
        # The event loop has its turn between runs, however fast content arrives.
        self._unpaused = 0
        await asyncio.sleep(0)
        if self._current is not None:
            return
        if not self._inputs:
            await self._initialize()
        if self._resume is not None and self._merged is not None:
            self._merged.resume(self._resume)
        self._resume = None
        if self._open == 0:
            await self._finish()
            raise StopAsyncIteration
        if self._merged is not None:
            arrival = await self._merged.next_arrival()
        else:
            arrival = await next_arrival(self._inputs[0])
        self._take(arrival)

    def _take(self, arrival: Arrival) -> None:
        source, error = arrival.input, arrival.error
        splitter = source.splitter
        if error is None and not arrival.ended:
            expected = splitter.offset
            discarded = splitter.feed(arrival.chunk, arrival.begin)
            if discarded:
                self._warn_of_jump(source, expected, arrival.begin, discarded)
            self._current = source
        elif arrival.ended:
            splitter.end()
            self._current = source
            self._open -= 1
        elif isinstance(error, OffsetJumpError):
            expected = splitter.offset
            discarded = splitter.jump(error.offset)
            self._warn_of_jump(source, expected, error.offset, discarded)
        elif isinstance(error, OffsetNotYetAvailableError) and self._named is not None:
            self._open -= 1
        else:
            assert error is not None
            self._resume = source
            begin = splitter.offset
            wrapped = framing_error(error, splitter.journal, begin, begin, "read")
            raise self._explain(wrapped) from error

    def _warn_of_jump(self, source: JournalInput, begin: int, end: int, discarded: int) -> None:
        extra = {
            "journal": source.splitter.journal,
            "from": begin,
            "to": end,
            "discarded": discarded,
        }
        _logger.warning("source journal offset jump", extra=extra)

    def _explain(self, error: FramingError) -> FramingError:
        return error

    def _skip(self, error: FramingError) -> None:
        self.skipped += 1
        extra = {"journal": error.journal, "begin": error.begin, "end": error.end}
        _logger.debug("skipped a frame: %s", error, extra=extra)

    async def _initialize(self) -> None:
        named = self._named
        if named is None:
            assert self._reader is not None
            readers = [self._reader]
            (framing,) = await fetch_framings(self._reader.client, [str(self._reader.journal)])
            framings = [framing]
        else:
            framings = await fetch_framings(named.client, named.names)
            offsets = self._start_offsets()
            readers = [named.reader(name, offsets) for name in named.names]
        self._inputs = [
            JournalInput(reader, framing, self.adapter, self._options)
            for reader, framing in zip(readers, framings, strict=True)
        ]
        self._open = len(self._inputs)
        if self._open > 1:
            self._merged = MergedInputs(self._inputs, self._buffer_bytes)

    def _start_offsets(self) -> dict[str, int]:
        return {}

    def _decode(self, envelopes: Sequence[Envelope[Any]], begin: int) -> int:
        """Decode messages from index `begin` on and make them ready; return how many were seen.

        It ends behind as many as are handled without a pause, or at the first which can't be
        decoded: `_stopped` is set then.
        """
        decode, add, skip_acks = self.adapter.decode, self._ready.append, self._skip_acks
        index = begin
        end = min(begin + _TURN, len(envelopes))
        while index < end:
            try:
                for envelope in islice(envelopes, index, end):
                    if envelope.flags == _ACK:
                        if not skip_acks:
                            envelope.message = self._decode_ack(envelope)
                            add(envelope)
                    else:
                        envelope.message = decode(envelope.message)
                        add(envelope)
                    index += 1
            except Exception as error:  # noqa: BLE001 - handed on, with where it happened.
                bad = envelopes[index]
                wrapped = framing_error(error, bad.journal, bad.begin, bad.end, "decode")
                wrapped.__cause__ = error
                if not self._skip_errors:
                    explained = self._explain(wrapped)
                    explained.__cause__ = error
                    self._stopped = explained
                    return index
                self._skip(wrapped)
                index += 1
        return index

    def _decode_ack(self, envelope: Envelope[Any]) -> Any:
        try:
            return self.adapter.decode(envelope.message)
        except Exception as error:  # noqa: BLE001
            # Types with required members can't be made of an acknowledgement.
            _logger.debug("acknowledgement isn't a message: %s", error)
            return None

    async def _finish(self) -> None:
        """Let go of what reading by name took, at the end of content."""
        if self._merged is not None:
            await self._merged.aclose()
        if self._named is not None:
            for source in self._inputs:
                await source.reader.aclose()

    async def aclose(self) -> None:
        """End reading, of a reader which was handed in, too. Idempotent.

        Cancellation: safe — call again.
        """
        self._closed = True
        self._ready.clear()
        if self._merged is not None:
            await self._merged.aclose()
        for source in self._inputs:
            await source.reader.aclose()
        if self._reader is not None and not self._inputs:
            await self._reader.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        merged: MergedInputs | None = getattr(self, "_merged", None)
        if merged is not None and merged.running:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        names = (
            ", ".join(self._named.names[:3]) + (", …" if len(self._named.names) > 3 else "")
            if self._named is not None
            else str(self._reader.journal if self._reader is not None else "")
        )
        state = "closed" if self._closed else f"ready={len(self._ready)} open={self._open}"
        return f"<{type(self).__name__} of {names} {state} skipped={self.skipped}>"


def _is_reader(source: RetryReader | str | Iterable[str]) -> TypeIs[RetryReader]:
    return hasattr(source, "__anext__")


class Batches(Generic[T]):
    """Async iterator of lists of messages. Made by `batches()`."""

    def __init__(self, iterator: MessageIterator[T]) -> None:
        self._iterator = iterator

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Envelope[T]]:
        return await self._iterator.next_batch()
