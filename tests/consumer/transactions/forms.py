"""Shards of a ClockLoop in both forms: the framework reads their sources, or a MessageProducer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gazette_aio.consumer.application import DeferToNextTransaction
from gazette_aio.message import ACK_TXN, Envelope, Flags, ProducerID, build_uuid, json_adapter
from gazette_aio.protocol.consumer import Checkpoint, ShardSpec
from tests.consumer.transactions.clocked import Clocked, ClockLoop, Content
from tests.consumer.transactions.world import NDJSON, read_directly, shard_spec
from tests.message.fakes import FakeClient, FakeReader
from tests.waiting import turns

SIZE = 100
"""Bytes of each message."""
MIN, MAX = 0.001, 0.010
ADAPTER = json_adapter()


class Lines(Content):
    """A journal of JSON lines of equal lengths."""

    size = SIZE

    def add(
        self, flags: Flags, producer: ProducerID = Content.producer, clock: int | None = None
    ) -> Envelope[Any]:
        envelope = super().add(flags, producer, clock)
        envelope.message = ADAPTER.decode(self.line(envelope))
        return envelope

    def line(self, envelope: Envelope[Any]) -> bytes:
        """Return the bytes of a message."""
        uuid = build_uuid(envelope.producer, envelope.clock, envelope.flags)
        if envelope.flags == ACK_TXN:
            text = ADAPTER.acknowledgement(uuid)
        else:
            text = ADAPTER.encode({"at": envelope.begin}, uuid)
        return text.ljust(self.size - 1) + b"\n"


class Journals(FakeClient):
    """A client of journals in memory."""

    router = read_directly

    def read(self, request: Any, *, timeout: float = 0.0) -> FakeReader:
        reader: FakeReader = super().read(request)
        return reader


class Notes:
    """Notes what it consumes."""

    def __init__(self, loop: ClockLoop) -> None:
        self.loop = loop
        self.consumed: list[Envelope[Any]] = []
        self.begun = 0
        self.defers_at: int | None = None
        """Number of messages before the one that is deferred once."""
        self.begin_seconds = self.seconds_each = 0.0

    def adapter(self, spec: Any) -> Any:
        return ADAPTER

    def new_store(self, shard: Any, recorder: Any) -> Any:
        raise NotImplementedError

    def begin_txn(self, shard: Any, store: Any) -> None:
        self.begun += 1
        self.loop.now += self.begin_seconds

    def finished_txn(self, shard: Any, store: Any, commit: Any) -> None:
        pass

    def consume_message(self, shard: Any, store: Any, envelope: Any, publisher: Any) -> None:
        if len(self.consumed) == self.defers_at:
            self.defers_at = None
            raise DeferToNextTransaction
        assert envelope.message.get("at", envelope.begin) == envelope.begin
        self.consumed.append(envelope)
        self.loop.now += self.seconds_each


class ProducedNotes(Notes):
    """Reads what the test sends."""

    def __init__(self, loop: ClockLoop, contents: dict[str, Lines]) -> None:
        super().__init__(loop)
        self.contents = contents
        self.queue: asyncio.Queue[Any] = asyncio.Queue()

    async def read_messages(self, shard: Any, store: Any, checkpoint: Any, sink: Any) -> None:
        while True:
            await sink.send(await self.queue.get())

    async def replay_range(self, shard: Any, store: Any, journal: str, begin: int, end: int) -> Any:
        for envelope in self.contents[journal].read(begin, end):
            yield envelope

    def read_through(self, shard: Any, store: Any, offsets: Any) -> Any:
        return offsets


class Formed(Clocked):
    """A primary that notes the messages of journals, whose sending is up to the test.

    Args:
        loop: The loop.
        contents: Journals by name; one by default.
        spec: Spec of the shard, whose sources are the journals.
        checkpoint: Checkpoint to begin at. What precedes it has been sent already.
    """

    def __init__(
        self,
        loop: ClockLoop,
        contents: dict[str, Lines] | None = None,
        spec: ShardSpec | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.contents = contents or {"source/A": Lines()}
        spec = spec or shard_spec(*self.contents, min_ms=1, max_ms=10)
        super().__init__(loop, spec, checkpoint)
        (self.content, *_) = self.contents.values()
        self.sent = {
            name: self.checkpoint.sources[name].read_through
            if name in self.checkpoint.sources
            else 0
            for name in self.contents
        }

    async def send(self, *envelopes: Any) -> None:
        """Send the messages of each journal up to those given."""
        for name in dict.fromkeys(each.journal for each in envelopes):
            await self.send_until(name, max(e.end for e in envelopes if e.journal == name))

    async def send_until(self, name: str, end: int) -> None:
        """Send the messages of a journal up to an offset."""
        begin, self.sent[name] = self.sent[name], end
        self.deliver(name, self.contents[name].read(begin, end))
        await turns(40)

    def deliver(self, name: str, envelopes: list[Any]) -> None:
        raise NotImplementedError

    @property
    def consumed(self) -> list[int]:
        """Offsets of consumed messages."""
        return [each.begin for each in self.application.consumed]

    @property
    def read_through(self) -> dict[str, int]:
        """Offsets of progress."""
        return dict(self.progress.progress.read_through)

    async def commit(self) -> Checkpoint:
        """Complete the transaction that commits, and return its checkpoint."""
        checkpoint, _, operation = self.store.commits[-1]
        assert not operation.done()
        await self.committed()
        await turns(40)
        found: Checkpoint = checkpoint
        return found


class Produced(Formed):
    """A MessageProducer reads the journals."""

    def __init__(self, loop: ClockLoop, *args: Any, **fields: Any) -> None:
        super().__init__(loop, *args, **fields)
        self.application = ProducedNotes(loop, self.contents)

    def deliver(self, name: str, envelopes: list[Any]) -> None:
        if envelopes:
            self.application.queue.put_nowait(envelopes)


class Sourced(Formed):
    """The framework reads the journals."""

    def __init__(self, loop: ClockLoop, *args: Any, **fields: Any) -> None:
        super().__init__(loop, *args, **fields)
        self.application = Notes(loop)
        self.journals = Journals(dict.fromkeys(self.contents, NDJSON), chunk=50_000)
        for name, sent in self.sent.items():
            self.deliver(name, self.contents[name].read(0, sent))
        self.shard.client = self.journals

    def deliver(self, name: str, envelopes: list[Any]) -> None:
        content = self.contents[name]
        self.journals.append(name, b"".join(map(content.line, envelopes)))


FORMS = pytest.mark.parametrize("form", [Produced, Sourced])
