"""Live tails of journals, as server-sent events."""

from __future__ import annotations

import asyncio
import codecs
import dataclasses
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

import gazette_aio.protocol as pb
from gazette_aio.client.reads.head import head_of

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from gazette_aio.client import JournalClient, RetryReader


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TailLimits:
    """Bounds of live tails.

    Args:
        count: Tails at a time, of all browsers.
        recent_bytes: Bytes before the write head at which a tail begins.
        event_bytes: Content of an event.
        quiet_seconds: Time without content after which an empty event is sent.
        write_seconds: Time after which a browser that takes no more is cut off.
        answer_seconds: Time within which the brokers tell the write head.
    """

    count: int = 16
    recent_bytes: int = 4 << 10
    event_bytes: int = 16 << 10
    quiet_seconds: float = 15.0
    write_seconds: float = 20.0
    answer_seconds: float = 5.0


class Tails:
    """Sends the newest content of journals to browsers, until they close the page.

    Nothing is buffered for a slow browser: it slows the read down, and is cut off in the end.

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

    async def answer(
        self,
        request: web.Request,
        opening: AbstractAsyncContextManager[JournalClient],
        journal: str,
    ) -> web.StreamResponse:
        """Answer a request with a tail.

        Args:
            request: The request.
            opening: Client of the browser.
            journal: Name of the journal.

        Raises:
            HTTPServiceUnavailable: There are too many tails.
            GazetteError: The brokers refuse.

        Cancellation: aborts — the tail ends.
        """
        if len(self._tasks) >= self._limits.count:
            raise web.HTTPServiceUnavailable(reason="too many tails are open: close some")
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            async with opening as client:
                # Refusals come before the answer begins, and thus have a status.
                head = await head_of(client, journal, self._limits.answer_seconds)
                response = web.StreamResponse()
                response.content_type = "text/event-stream"
                response.charset = "utf-8"
                await response.prepare(request)
                begin = max(head - self._limits.recent_bytes, 0)
                wanted = pb.ReadRequest(journal=journal, offset=begin, block=True)
                try:
                    async with client.read(wanted) as reader:
                        await self._send(reader, request, response)
                except ConnectionError:
                    pass  # The browser has gone.
                return response
        finally:
            self._tasks.discard(task)

    async def _send(
        self, reader: RetryReader, request: web.Request, response: web.StreamResponse
    ) -> None:
        # Characters may be cut by the ends of events.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        is_last = False
        while not is_last:
            event = b": \n\n"
            quiet = asyncio.timeout(self._limits.quiet_seconds)
            try:
                async with quiet:
                    content = await reader.read(self._limits.event_bytes)
                if not content:
                    return
                event = tail_event(reader.offset, len(content), decoder.decode(content))
            except pb.OffsetJumpError:
                decoder.reset()
                continue
            except pb.GazetteError as error:
                event, is_last = problem_event(str(error)), True
            except TimeoutError:
                if not quiet.expired():
                    raise
            try:
                async with asyncio.timeout(self._limits.write_seconds):
                    await response.write(event)
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()
                return


def tail_event(end: int, length: int, text: str) -> bytes:
    """Return the event of content: lines of JSON can't end it, whatever the content is.

    Args:
        end: Offset after the content.
        length: Bytes of the content.
        text: The content.
    """
    data = msgspec.json.encode({"begin": str(end - length), "end": str(end), "text": text})
    return b"id: %d\ndata: %b\n\n" % (end, data)


def problem_event(problem: str) -> bytes:
    """Return the event of a failure, which is the last one."""
    return b"data: %b\n\n" % msgspec.json.encode({"problem": problem})
