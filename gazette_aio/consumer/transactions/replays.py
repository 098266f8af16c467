"""Replays of transactions that outgrew the sequencer's ring."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Protocol

import gazette_aio.protocol as pb
from gazette_aio.aio.owner import Owner
from gazette_aio.protocol.errors import FramingError, GazetteError, OffsetJumpError, ReplayError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from gazette_aio.client import JournalClient
    from gazette_aio.message import Envelope, ReplayRange
    from gazette_aio.message.envelopes.splitter import JournalSplitter

_RUN_MESSAGES: Final = 256


class Replay(Protocol):
    """Messages of a range of a journal, which are read again."""

    async def next(self) -> Sequence[Envelope[Any]] | None:
        """Return the next messages, maybe none; or None at the end of the range.

        Cancellation: aborts — the replay must be closed.
        """
        ...

    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — reading ends anyway.
        """
        ...


class JournalReplay(Owner):
    """Replay of a journal that the framework reads.

    Args:
        client: Client to read with.
        span: Range to read.
        splitter: Splitter of content from the begin of the range.
        direct: Whether to fetch the files of fragments from their stores.
    """

    def __init__(
        self, client: JournalClient, span: ReplayRange, splitter: JournalSplitter, *, direct: bool
    ) -> None:
        self._end = span.end
        self._through = span.begin
        self._splitter = splitter
        request = pb.ReadRequest(
            journal=span.journal,
            offset=span.begin,
            end_offset=span.end,
            block=True,
            do_not_proxy=direct,
        )
        self._reader = client.read(request, timeout=math.inf)

    async def next(self) -> Sequence[Envelope[Any]] | None:
        """Return the next messages, or None at the end. See `Replay`.

        Raises:
            ReplayError: Content of the range can't be read, or isn't there.

        Cancellation: aborts — the replay must be closed.
        """
        while not (run := self._next_run()):
            try:
                chunk = await anext(self._reader)
            except StopAsyncIteration:
                break
            except OffsetJumpError as jump:
                raise self._missing(jump.offset) from jump
            except GazetteError as error:
                raise ReplayError(f"replay reader: {error}") from error
            self._splitter.feed(chunk, self._reader.offset - len(chunk))
            self._through = self._reader.offset
        if run:
            return run
        if self._through < self._end:
            # Wire: a broker doesn't report a hole if all the rest of the range lies in the hole.
            raise self._missing(self._end)
        return None

    def _missing(self, end: int) -> ReplayError:
        return ReplayError(f"replay reader: no content from {self._through} to {end}")

    def _next_run(self) -> Sequence[Envelope[Any]]:
        while True:
            try:
                return self._splitter.next_run()
            except FramingError as error:
                # Bytes between messages: reading failed there at first, or skipped them.
                if error.kind == "unexpected_eof":
                    return ()

    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — call again.
        """
        await self._reader.aclose()


class ProducerReplay(Owner):
    """Replay by a MessageProducer.

    Args:
        messages: The messages.
        clock: Returns the present time, in seconds.
    """

    def __init__(self, messages: AsyncIterator[Envelope[Any]], clock: Callable[[], float]) -> None:
        self._messages = messages
        self._clock = clock

    async def next(self) -> Sequence[Envelope[Any]] | None:
        """Return the next messages, or None at the end. See `Replay`.

        Cancellation: aborts — the replay must be closed.
        """
        run: list[Envelope[Any]] = []
        end = self._clock() + 0.001
        async for envelope in self._messages:
            run.append(envelope)
            if len(run) == _RUN_MESSAGES or self._clock() >= end:
                break
        return run or None

    async def aclose(self) -> None:
        """End the iterator, if it's a generator. Idempotent.

        Cancellation: aborts.
        """
        close: Any = getattr(self._messages, "aclose", None)
        if close is not None:
            await close()
