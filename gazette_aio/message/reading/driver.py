"""Driver of a message flow: its reads, waits, and work in a thread."""

from __future__ import annotations

import asyncio
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from gazette_aio.aio.closing import Closing
from gazette_aio.aio.owner import Owner
from gazette_aio.message.reading.flow import (
    Deliver,
    MessageFlow,
    NeedContent,
    NeedReplay,
    Stop,
    Work,
)
from gazette_aio.message.reading.inputs import Inputs
from gazette_aio.message.reading.journal_input import C
from gazette_aio.message.reading.sources import SelectedSource
from gazette_aio.protocol.errors import GazetteError, OffsetJumpError, ReplayError, UsageError
from gazette_aio.protocol.status_errors import JournalNotFoundError

if TYPE_CHECKING:
    from collections.abc import Sized

    from gazette_aio.client import RetryReader
    from gazette_aio.message.reading.flow import Engine
    from gazette_aio.message.reading.formats import JournalFormats
    from gazette_aio.message.reading.journal_input import JournalInput
    from gazette_aio.message.reading.sources import Source

Out = TypeVar("Out", bound="Sized")

INLINE_BYTES = 8 << 10
"""Size of content that is worked on without a thread: a switch of threads takes about as long."""

TURN: Final = 512
"""Messages delivered before the event loop has a turn."""

_LARGEST_BLOCK = 31 << 20  # Of those whose size has glibc keep more memory.


class FlowDriver(Owner, Generic[C, Out]):
    """Executes the steps of a flow, and returns its outputs.

    Args:
        name: Name of the form of iteration.
        source: Journals to read.
        formats: Formats of the journals.
        engine: Makes outputs.
        buffer_bytes: Limit of content that is read ahead.
        read_ahead: Whether to also read ahead of a single journal.
        allow_replay_gaps: Whether content of a replay may be missing.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        formats: JournalFormats[Any],
        engine: Engine[C, Out],
        *,
        buffer_bytes: int,
        read_ahead: bool,
        allow_replay_gaps: bool,
    ) -> None:
        self.flow: MessageFlow[C, Out] = MessageFlow(engine, allow_replay_gaps=allow_replay_gaps)
        self.is_used: bool = False
        """Whether outputs were requested."""
        self.unpaused: int = 0
        """Messages delivered since the event loop had a turn."""
        self._name = name
        self._source = source
        self._engine = engine
        # Invariant: tasks hold no reference to the driver, so that a leaked driver is detected.
        self._inputs: Inputs[C] = Inputs(
            source,
            formats,
            engine.begin,
            offsets=engine.offsets,
            buffer_bytes=buffer_bytes,
            read_ahead=read_ahead,
        )
        if read_ahead:
            _keep_freed_memory(buffer_bytes)
        self._closed = self._is_busy = False
        self._reader: RetryReader | None = None  # Of a replay.
        self._retired = Closing()  # Readers of ended replays.
        self._threads: ThreadPoolExecutor | None = None
        self._work: asyncio.Future[None] | None = None

    async def next(self) -> Out:
        """Return the next outputs.

        Raises:
            StopAsyncIteration: At the end of content, or after closing.
            FramingError: Content of a journal can't be split, decoded or read. The next call
                continues after it.
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
        if self.unpaused >= TURN:
            # A loop over messages that are all at hand lets other tasks have turns, too.
            await self._pause()
        while not self._closed:
            if self._retired:
                await self._retired.aclose()
                continue
            if self._work is not None:
                await self._finish_work()
                continue
            match self.flow.next():
                case Deliver(output):
                    self.unpaused += len(output)
                    self._work_ahead()
                    return output
                case NeedContent():
                    await self._pause()
                    arrival = await self._inputs.next_arrival()
                    self.flow.receive(arrival)
                    self._receive_more(arrival.source)
                case NeedReplay() as wanted:
                    await self._pause()
                    await self._read_replay(wanted)
                case Work(size_bytes) if size_bytes > INLINE_BYTES:
                    await self._gather()
                    # Race: another task may have closed the driver.
                    if not self._closed:
                        self._begin_work()
                case Work():
                    self.flow.work()
                    await self._pause()
                case Stop(error):
                    if isinstance(error, ReplayError):
                        self._give_up_replay(error)
                    raise error
        raise StopAsyncIteration

    async def _pause(self) -> None:
        self.unpaused = 0
        await asyncio.sleep(0)

    # Work in a thread.

    def _begin_work(self) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "gazette-arrow")
        loop = asyncio.get_running_loop()
        self._work = loop.run_in_executor(self._threads, self.flow.work)

    async def _finish_work(self) -> None:
        # Race: cancelling this wait doesn't undo the thread's work. The next call finds the work.
        if self._work is not None:
            await asyncio.wait((self._work,))
            self._work = None

    def _work_ahead(self) -> None:
        """Let the thread work on content at hand while the caller uses outputs."""
        engine, current = self._engine, self.flow.current
        if (
            current is not None
            and engine.room(current.content) is not None
            and not self._inputs.are_others_ready(current)
        ):
            self._receive_more(current)
            room = engine.room(current.content)
            if (
                room is not None
                and self._inputs.has_gathered(current, room)
                and engine.bytes_of_step(current.content) > INLINE_BYTES
            ):
                self._begin_work()

    async def _gather(self) -> None:
        """Receive as much content as the next step can use, if the journal lags."""
        # Hot: each step has a cost of its own, which a chunk alone isn't worth.
        current = self.flow.current
        assert current is not None
        room = self._engine.room(current.content)
        if room is not None and room > 0:
            await self._inputs.gather(current, room)
            self._receive_more(current)

    def _receive_more(self, source: JournalInput[C]) -> None:
        """Receive content at hand that directly follows, up to the size of one step."""
        room = self._engine.room(source.content)
        if room is not None:
            for arrival in self._inputs.more(source, room):
                self.flow.receive(arrival)

    # Replays.

    async def _read_replay(self, wanted: NeedReplay) -> None:
        flow = self.flow
        source, size = flow.current, 0
        assert source is not None
        try:
            if source.is_void:
                raise ReplayError(f"replay reader: {source.journal} was created anew")
            if self._reader is None:
                self._reader = source.replay(wanted.begin, wanted.end)
            reader = self._reader
            while size < self._engine.replay_bytes:
                try:
                    chunk = await anext(reader)
                except StopAsyncIteration:
                    self._retire()
                    flow.end_replay(reader.offset)
                    return
                except OffsetJumpError:
                    if not flow.allow_replay_gaps:
                        raise
                    chunk = b""
                flow.feed_replay(chunk, reader.offset - len(chunk))
                size += len(chunk)
        except GazetteError as error:
            flow.fail_replay(error)

    def _give_up_replay(self, error: ReplayError) -> None:
        """End a failed replay, and park its journal, or abandon it if it was deleted."""
        self._retire()
        current, cause = self.flow.current, error.__cause__
        assert current is not None
        is_gone = cause is not None and isinstance(cause.__cause__, JournalNotFoundError)
        if isinstance(self._source, SelectedSource) and (current.is_void or is_gone):
            self.flow.abandon()
            self._inputs.abandon(current)  # A new journal of the same name may begin.
        elif self._inputs.may_park(current):
            self._inputs.park(current, self.flow.rewind())

    def _retire(self) -> None:
        if self._reader is not None:
            self._retired.add(self._reader)
            self._reader = None

    async def aclose(self) -> None:
        """End reading, and close a given reader, too. Idempotent.

        Cancellation: safe — call again.
        """
        self._closed = True
        await self._inputs.aclose()
        self._retire()
        await self._retired.aclose()
        await self._finish_work()
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    def __del__(self) -> None:
        inputs: Any = getattr(self, "_inputs", None)
        if inputs is not None and (inputs.running or self._threads is not None):
            inputs.end_from_anywhere()
            if self._threads is not None:
                self._threads.shutdown(wait=False)
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"open={self._inputs.open}"
        return f"<{self._name} of {self._source} {state} skipped={self._engine.skipped}>"


def _keep_freed_memory(size_bytes: int) -> None:
    """Have chunks of about so many bytes, once freed, leave their memory to the next ones.

    Glibc returns free memory at the end of its heap to the system, except for twice the size of the
    largest block that was freed before. The system clears each page that it gives anew.
    """
    # The system gives no memory for a block of zeros that nobody writes to.
    bytes(min(size_bytes, _LARGEST_BLOCK))
