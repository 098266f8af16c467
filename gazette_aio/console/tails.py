"""Live tails of journals, as server-sent events."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import Turns
from gazette_aio.console.tail_forms import problem_event, tail_event

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from gazette_aio.client import JournalClient, RetryReader
    from gazette_aio.console.tail_forms import TailForm


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TailLimits:
    """Bounds of live tails.

    Args:
        count: Most concurrent tails, of all browsers.
        event_bytes: Most bytes of content of an event.
        quiet_seconds: Seconds without content after which an empty event is sent.
        write_seconds: Seconds after which a browser that doesn't receive is disconnected.
    """

    count: int = 16
    event_bytes: int = 16 << 10
    quiet_seconds: float = 15.0
    write_seconds: float = 20.0


class Span(NamedTuple):
    """Content to send."""

    journal: str
    head: int
    """Write head of the journal."""
    begin: int | None = None
    """First offset; None for the most recent content."""
    end: int | None = None
    """Offset after the content; None to follow the journal."""


class Tails:
    """Sends the newest content of journals to browsers, until they close the page.

    Nothing is buffered for a slow browser: its read slows down, and the browser is disconnected
    after `write_seconds`.

    Args:
        limits: Bounds.
    """

    def __init__(self, limits: TailLimits) -> None:
        self._limits = limits
        self._tasks: set[asyncio.Task[object]] = set()

    def end(self) -> None:
        """End all tails."""
        for task in self._tasks:
            task.cancel()

    @contextmanager
    def place(self) -> Generator[None]:
        """Let the current task serve a tail within the block.

        Raises:
            HTTPServiceUnavailable: There are too many tails.
        """
        if len(self._tasks) >= self._limits.count:
            raise web.HTTPServiceUnavailable(reason="too many tails are open: close some")
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)

    async def answer(
        self, request: web.Request, client: JournalClient, form: TailForm, wanted: Span
    ) -> web.StreamResponse:
        """Answer a request with content of a journal.

        Args:
            request: The request.
            client: Client of the browser.
            form: Form in which the content is sent.
            wanted: The content.

        Cancellation: aborts — the tail ends.
        """
        response = web.StreamResponse()
        response.content_type = "text/event-stream"
        response.charset = "utf-8"
        await response.prepare(request)
        begin, end = wanted.begin, wanted.end
        if begin is None:
            begin = max(wanted.head - form.recent_bytes, 0)
        form.begin(begin)
        read = pb.ReadRequest(
            journal=wanted.journal, offset=begin, end_offset=end or 0, block=end is None
        )
        try:
            if end is None or begin < end:
                async with client.read(read) as reader:
                    await self._send(reader, form, request, response)
            if end is not None:
                event = tail_event(end, {"end": str(end), "head": str(wanted.head)})
                await self._write(event, request, response)
        except ConnectionError:
            pass  # The browser has gone.
        return response

    async def _send(
        self,
        reader: RetryReader,
        form: TailForm,
        request: web.Request,
        response: web.StreamResponse,
    ) -> None:
        turns = Turns()
        is_last = False
        while not is_last:
            events: Iterable[bytes] = (b": \n\n",)
            quiet = asyncio.timeout(self._limits.quiet_seconds)
            try:
                async with quiet:
                    content = await reader.read(self._limits.event_bytes)
                if not content:
                    return
                events = form.events(reader.offset - len(content), content)
            except pb.OffsetJumpError:
                form.begin(reader.offset, is_whole=True)
                continue
            except pb.GazetteError as error:
                events, is_last = (problem_event(str(error)),), True
            except TimeoutError:
                if not quiet.expired():
                    raise
            for event in events:
                await self._write(event, request, response)
                await turns.rest()

    async def _write(
        self, event: bytes, request: web.Request, response: web.StreamResponse
    ) -> None:
        try:
            async with asyncio.timeout(self._limits.write_seconds):
                await response.write(event)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the browser takes nothing") from None
