"""Stream of the content of a fragment, fetched and decompressed ahead of its reader."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.aio.task import start_task
from gazette_aio.aio.threads import in_thread
from gazette_aio.client.fragments.file_transport import FileBody
from gazette_aio.client.rpc.read_ahead import ReadAhead
from gazette_aio.protocol.codecs.content import SLICE_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
    from contextlib import AsyncExitStack

    from gazette_aio.client.fragments.fetcher import FragmentBody
    from gazette_aio.protocol.codecs.content import FragmentContent

_logger = logging.getLogger(__name__)

CLOSE_SECONDS = 2.0
"""Time for streams to end when they're closed. Only a file system that hangs takes longer."""

_RUN_SLICES: Final = 8
"""Most slices that a thread reads at a time, so that readers share the threads."""


class FragmentStream(ReadAhead[bytes]):
    """Slices of content, produced by a task of its own.

    Producing pauses while more than one slice waits, so that at most two do. Worker threads read
    files and decompress. One task at a time may receive.

    Args:
        content: Decompresses raw bytes.
        body: Source of raw bytes.
        resources: Closes the body, and what belongs to it, when the stream ends.
        url: URL of the body without its query, for errors.
        journal: Journal of the fragment, for errors.
        progress_timeout: Seconds within which each further byte of the body must arrive.
    """

    def __init__(
        self,
        content: FragmentContent,
        body: FragmentBody,
        resources: AsyncExitStack,
        *,
        url: str,
        journal: str,
        progress_timeout: float,
    ) -> None:
        super().__init__()
        self.journal = journal
        self.url = url
        self._content = content
        self._body = body
        self._resources = resources
        self._progress_timeout = progress_timeout
        self._arrived = 0
        self._producing = False
        self._given_up = False
        self._task = start_task(self._run(), f"gazette fragment {journal}")

    def on_end(self, callback: Callable[[FragmentStream], object]) -> None:
        """Call a function when the stream has ended and its body is closed."""
        self._task.add_done_callback(lambda _: callback(self))

    @property
    def is_abandoned(self) -> bool:
        """Whether the stream was closed from outside."""
        return self._closing

    def abandon(self) -> None:
        """End the stream, without waiting for its end. Idempotent."""
        self._closing = True
        self._drop_waiting()
        if not self._ended:
            self._ended = True
            # Race: a task that is cancelled before it begins, or just before its end, wouldn't
            # close the body.
            if self._producing:
                self._task.cancel()
        self._wake(self._receiver)

    async def aclose(self) -> None:
        """End the stream, and wait until its body is closed, as `close_all()`. Idempotent.

        Cancellation: safe — it ends anyway.
        """
        await self.close_all((self,))

    @staticmethod
    async def close_all(streams: Iterable[FragmentStream]) -> None:
        """End streams, and wait until their bodies are closed, or `CLOSE_SECONDS` have passed.

        A call of a file system that hangs can't be ended. Its thread closes the file once the call
        has returned.

        Cancellation: safe — they end anyway.
        """
        waiting: dict[asyncio.Task[None], FragmentStream] = {}
        for stream in streams:
            stream.abandon()
            if not stream._given_up:
                waiting[stream._task] = stream
        if not waiting:
            return
        _, hung = await asyncio.wait(waiting, timeout=CLOSE_SECONDS)
        for task in hung:
            waiting[task]._given_up = True
        if hung:
            first = min(waiting[task].url for task in hung)
            text = "closing %d fragment files takes too long, and isn't waited for; one is %s"
            _logger.warning(text, len(hung), first)

    async def _run(self) -> None:
        try:
            try:
                self._producing = not self._closing
                if self._producing:
                    await self._produce()
            finally:
                self._producing = False
                await self._resources.aclose()
        except asyncio.CancelledError:
            if not self._closing:
                self._error = pb.TransportError(
                    "CANCELLED", "the event loop ends", journal=self.journal
                )
            raise
        except OSError as error:
            text = f'reading "{self.url}": {error.strerror or type(error).__name__}'
            self._error = self._failure("UNAVAILABLE", text)
        except Exception as error:  # noqa: BLE001 - The receiver raises it.
            self._error = error
            if isinstance(error, pb.TransportError):
                error.journal = error.journal or self.journal
        finally:
            self._ended = True
            self._wake(self._receiver)

    async def _produce(self) -> None:
        body, content = self._body, self._content
        if isinstance(body, FileBody):
            while await in_thread(self._read_file, body):
                await self._until_room()
            return
        async for data in self._raw_bytes(body):
            await self._deliver(await self._step(data))
            while not content.needs_input:
                await self._deliver(await self._step(b""))
        await self._deliver(content.end())

    def _read_file(self, body: FileBody) -> bool:
        """Deliver slices of a file while there is room, and return whether more may come.

        Runs in a worker thread, which readers share.
        """
        content, sent = self._content, self._arrived
        for _ in range(_RUN_SLICES):
            piece = b""
            while not (piece or self._closing or content.has_ended):
                piece = content.read_from(body.read_blocking)
            if not piece:
                return False
            sent += len(piece)
            self._loop.call_soon_threadsafe(self._arrive, piece)
            # Race: a slice that arrives meanwhile may count twice, which ends the run early.
            if sent - self._arrived + self.waiting_bytes > SLICE_BYTES:
                break
        return True

    def _arrive(self, piece: bytes) -> None:
        if piece and not self._closing:
            self._put(piece, len(piece))
        self._arrived += len(piece)

    async def _step(self, data: bytes) -> bytes:
        content = self._content
        return content.step(data) if content.is_plain else await in_thread(content.step, data)

    async def _deliver(self, piece: bytes) -> None:
        self._arrive(piece)
        await self._until_room()

    async def _raw_bytes(self, body: FragmentBody) -> AsyncGenerator[bytes]:
        """Yield the bytes of a body, as many at a time as a step takes."""
        size, chunks = self._content.input_bytes, aiter(body)
        while chunk := await self._fetch(chunks):
            if len(chunk) <= size:
                yield chunk
            else:
                for begin in range(0, len(chunk), size):
                    yield chunk[begin : begin + size]

    def take(self, limit: int = -1) -> bytes:
        """Remove and return up to `limit` bytes that wait, of one slice."""
        if not self._waiting:
            return b""
        size, piece = self._waiting[0]
        begin = len(piece) - size
        if not 0 <= limit < size:
            self.receive_nowait()
            return piece[begin:]
        self._waiting[0] = size - limit, piece
        self._made_room(limit)
        return piece[begin : begin + limit]

    def _is_full(self) -> bool:
        if not self._waiting:
            return False
        size, first = self._waiting[0]
        begun = size if size < len(first) else 0
        return self.waiting_bytes - begun > SLICE_BYTES

    async def _fetch(self, chunks: AsyncIterator[bytes]) -> bytes:
        """Return the next bytes of the body, or nothing at its end."""
        try:
            async with asyncio.timeout(self._progress_timeout):
                async for chunk in chunks:
                    if chunk:
                        return chunk
                return b""
        except TimeoutError:
            pass
        text = f'no byte of "{self.url}" came within {self._progress_timeout:g} s'
        raise self._failure("DEADLINE_EXCEEDED", text)

    def _failure(self, code: str, text: str) -> pb.TransportError:
        return pb.TransportError(code, text, journal=self.journal, retryable=True)
