"""What iterators read: one reader, or journals by their names."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import gazette_aio.protocol as pb
from gazette_aio.message.framing import Framing, framing_by_content_type
from gazette_aio.message.mapping import content_type_of
from gazette_aio.message.splitter import JournalSplitter
from gazette_aio.message.stamps import EnvelopeBuilder
from gazette_aio.message.uuid import unix_ns
from gazette_aio.protocol.errors import (
    ConfigurationError,
    GazetteError,
    ReadError,
    UnrecognizedContentTypeError,
)

if TYPE_CHECKING:
    from gazette_aio.client import JournalClient, RetryReader
    from gazette_aio.message.adapters.base import Adapter

Start = Mapping[str, int] | datetime | None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How frames of journals are read."""

    strict_uuid: bool
    max_frame_bytes: int


class JournalInput:
    """One journal being read: its reader, and what splits its content."""

    __slots__ = ("framing", "options", "reader", "splitter")

    def __init__(
        self, reader: RetryReader, framing: Framing, adapter: Adapter[Any], options: ReadOptions
    ) -> None:
        self.reader = reader
        self.framing = framing
        self.options = options
        self.splitter = self._split(adapter, reader)

    def _split(self, adapter: Adapter[Any], reader: RetryReader) -> JournalSplitter:
        return JournalSplitter(
            self.framing.decoder(reader.offset, max_frame_bytes=self.options.max_frame_bytes),
            EnvelopeBuilder(str(reader.journal), adapter, strict=self.options.strict_uuid),
        )

    def replay(self, adapter: Adapter[Any], begin: int, end: int) -> JournalInput:
        """Return an input of the content `[begin, end)` of the same journal."""
        request = pb.ReadRequest()
        request.CopyFrom(self.reader.request)
        request.offset, request.end_offset = begin, end
        reader = self.reader.client.read(request)
        return JournalInput(reader, self.framing, adapter, self.options)


@dataclass(frozen=True, slots=True)
class NamedSource:
    """Journals to read by their names."""

    names: tuple[str, ...]
    client: JournalClient
    block: bool
    start: Start

    def offset_of(self, name: str, offsets: Mapping[str, int]) -> int:
        """Return the offset to start reading a journal at."""
        if name in offsets:
            return offsets[name]
        return self.start.get(name, 0) if isinstance(self.start, Mapping) else 0

    def reader(self, name: str, offsets: Mapping[str, int]) -> RetryReader:
        """Return a reader of a journal."""
        request = pb.ReadRequest(
            journal=name, offset=self.offset_of(name, offsets), block=self.block
        )
        if isinstance(self.start, datetime) and name not in offsets:
            request.begin_mod_time = unix_ns(self.start) // 1_000_000_000
        return self.client.read(request)


def named_source(
    source: str | Iterable[str], client: JournalClient | None, start: Start, *, block: bool
) -> NamedSource:
    """Return the named source of an iterator's arguments.

    Raises:
        ConfigurationError: If there's no client, or no name, or a name is repeated.
    """
    if client is None:
        raise ConfigurationError("reading journals by name takes a client")
    names = (source,) if isinstance(source, str) else tuple(source)
    if not names:
        raise ConfigurationError("no journals to read")
    if len(set(names)) != len(names):
        raise ConfigurationError("a journal is named more than once")
    return NamedSource(names, client, block, start)


async def fetch_framings(client: JournalClient, names: Sequence[str]) -> list[Framing]:
    """Return the framing of each journal, by its content type.

    Cancellation: safe.

    Raises:
        ReadError: If a journal doesn't exist.
        UnrecognizedContentTypeError: If there's no framing of a journal's content type.
        GazetteError: If journals can't be listed.
    """
    plain = [pb.strip_meta(name) for name in names]
    selector = pb.LabelSelector()
    for name in dict.fromkeys(plain):
        selector.include.labels.add(name="name", value=str(name))
    selector.include.labels.sort(key=lambda label: label.value)
    try:
        response = await client.list(selector)
    except GazetteError as error:
        error.add_note("fetching journal spec")
        raise
    specs = {listed.spec.name: listed.spec for listed in response.journals}
    framings: list[Framing] = []
    for name, bare in zip(names, plain, strict=True):
        spec = specs.get(bare)
        if spec is None:
            text = f"fetching journal spec: named journal does not exist ({name})"
            raise ReadError(text, journal=str(name))
        try:
            framings.append(framing_by_content_type(content_type_of(spec)))
        except UnrecognizedContentTypeError as error:
            text = f"determining framing: {error}"
            raise UnrecognizedContentTypeError(text, journal=str(name)) from error
    return framings


@dataclass(frozen=True, slots=True)
class Arrival:
    """Something which a reader returned or raised."""

    input: JournalInput
    chunk: bytes = b""
    begin: int = 0
    error: Exception | None = None
    ended: bool = False


async def next_arrival(source: JournalInput) -> Arrival:
    """Return what the reader of `source` comes up with next.

    Cancellation: safe.
    """
    reader = source.reader
    try:
        chunk = await anext(reader)
    except StopAsyncIteration:
        return Arrival(source, ended=True)
    except Exception as error:  # noqa: BLE001 - raised by the iterator, with where it happened.
        return Arrival(source, error=error)
    return Arrival(source, chunk=chunk, begin=reader.offset - len(chunk))


class MergedInputs:
    """Reads several journals by a task each, whose chunks it hands out as they arrive.

    Each task reads ahead by no more than its share of a common limit.

    Args:
        inputs: Journals to read.
        buffer_bytes: Limit of the bytes which are read ahead, over all journals.
    """

    def __init__(self, inputs: Sequence[JournalInput], buffer_bytes: int) -> None:
        self._share = max(buffer_bytes // len(inputs), 1)
        self._arrivals: deque[Arrival] = deque()
        self._wakeup = asyncio.Event()
        self._ended = False
        self._room = {id(source): asyncio.Event() for source in inputs}
        self._held = dict.fromkeys(self._room, 0)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        for source in inputs:
            self._run(source)

    @property
    def running(self) -> bool:
        """Whether tasks are reading."""
        return any(not task.done() for task in self._tasks.values())

    def resume(self, source: JournalInput) -> None:
        """Go on reading a journal whose reader raised an error."""
        if self._tasks[id(source)].done():
            self._run(source)

    def _run(self, source: JournalInput) -> None:
        name = f"gazette-read-{source.reader.journal}"
        self._tasks[id(source)] = asyncio.create_task(self._pump(source), name=name)

    async def _pump(self, source: JournalInput) -> None:
        key = id(source)
        while True:
            arrival = await next_arrival(source)
            self._arrivals.append(arrival)
            self._wakeup.set()
            jumped = isinstance(arrival.error, pb.OffsetJumpError)
            if arrival.ended or (arrival.error is not None and not jumped):
                return
            self._held[key] += len(arrival.chunk)
            while self._held[key] >= self._share:
                room = self._room[key]
                room.clear()
                await room.wait()

    async def next_arrival(self) -> Arrival:
        """Return the next arrival of any journal.

        Cancellation: safe.

        Raises:
            StopAsyncIteration: Reading has ended.
        """
        while not self._arrivals:
            if self._ended:
                raise StopAsyncIteration
            self._wakeup.clear()
            await self._wakeup.wait()
        arrival = self._arrivals.popleft()
        key = id(arrival.input)
        self._held[key] -= len(arrival.chunk)
        self._room[key].set()
        return arrival

    def cancel(self) -> None:
        """End reading, without waiting for it."""
        self._ended = True
        self._wakeup.set()
        for task in self._tasks.values():
            task.cancel()

    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — reading ends anyway.
        """
        self.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
