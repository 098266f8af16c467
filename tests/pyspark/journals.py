"""A broker in a thread of the test process, with helpers which aren't asynchronous."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient, RetryPolicy
from gazette_aio.message import Adapter, Clock, ReadCommittedIter, json_adapter
from gazette_aio.message.uuid import ACK_TXN, CONTINUE_TXN, OUTSIDE_TXN, build_uuid, new_producer_id
from gazette_aio.testing import create_journals, journal_spec

T = TypeVar("T")
_SECONDS = 300.0

NDJSON = "application/x-ndjson"
CSV = "text/csv"
PROTOBUF = "application/x-protobuf-fixed"
JSON = json_adapter(dict)


class Broker:
    """An EmbeddedBroker with small fragments, and a client of it, in a thread with their loop.

    Spark's processes aren't forked from this one, so that its threads don't harm them.

    Args:
        root: Directory of what it keeps.
        client: Keywords of the client.
        options: Further options of the broker.
    """

    def __init__(
        self, root: Path, *, client: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        self.file_root = root / "fragments"
        """Directory of `file://` stores: the option `fileRoot` of a source."""
        self.file_root.mkdir(parents=True)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker", daemon=True)
        self.embedded = EmbeddedBroker(
            root / "broker",
            file_root=self.file_root,
            fsync="off",
            http_port=None,
            persist_delay=0.0,
            **options,
        )
        self._given = client or {}
        self.client: JournalClient

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self.embedded.start())
        retry = RetryPolicy(backoff=lambda attempt: 0.01)
        self.client = JournalClient(
            self.endpoint, file_root=self.file_root, retry=retry, **self._given
        )
        self.run(self.client.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self.run(self.client.aclose())
        self.run(self.embedded.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop of the broker and of `client`."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=_SECONDS)

    @property
    def endpoint(self) -> str:
        """URL of the broker: the option `brokers`."""
        return self.embedded.endpoint


class Producer:
    """A producer of JSON messages whose UUIDs are at hand: ID, clock and flags.

    Clocks go on from the wall clock, or are what a test sets.
    """

    def __init__(self, producer: bytes | None = None, adapter: Adapter[Any] = JSON) -> None:
        self.id = producer or new_producer_id()
        self.clock = Clock.now()
        self.adapter = adapter

    def pending(self, document: Any, clock: int | None = None) -> bytes:
        """Return a message within a transaction, framed as a line."""
        return self.encode(document, CONTINUE_TXN, clock)

    def outside(self, document: Any, clock: int | None = None) -> bytes:
        """Return a message which is committed at once, framed as a line."""
        return self.encode(document, OUTSIDE_TXN, clock)

    def encode(self, document: Any, flags: int, clock: int | None = None) -> bytes:
        """Return a message with flags, framed as a line."""
        clock = self.clock.tick() if clock is None else clock
        return self.adapter.encode(document, build_uuid(self.id, clock, flags)) + b"\n"

    def ack(self, clock: int | None = None) -> bytes:
        """Return an acknowledgement: it commits what's pending, or rolls back to an older clock."""
        clock = self.clock.tick() if clock is None else clock
        return self.adapter.acknowledgement(build_uuid(self.id, clock, ACK_TXN)) + b"\n"


class Journals:
    """Journals of one test: names of all of them begin with `prefix`.

    Wherever a name is expected, it's that behind the prefix.
    """

    def __init__(self, broker: Broker, prefix: str) -> None:
        self.broker = broker
        self.prefix = prefix

    def options(self, **options: object) -> dict[str, str]:
        """Return options of a source of all journals of the test, and further ones.

        None leaves one out: `options(prefix=None, journals=...)`.
        """
        given: dict[str, object] = {
            "brokers": self.broker.endpoint,
            "prefix": self.prefix,
            "fileRoot": self.broker.file_root,
            "fetchTimeout": "5s",
        }
        given |= options
        return {name: str(value) for name, value in given.items() if value is not None}

    def name(self, name: str) -> str:
        """Return the full name of a journal."""
        return self.prefix + name

    def create(
        self,
        *names: str,
        content_type: str | None = NDJSON,
        labels: Mapping[str, str] | None = None,
        length: int = 1 << 16,
        codec: pb.CompressionCodec.ValueType = pb.CompressionCodec.NONE,
        stores: Sequence[str] = ("file:///",),
    ) -> list[str]:
        """Create journals, and return their full names.

        Args:
            names: Their names.
            content_type: Their content type; None for no such label.
            labels: Further labels.
            length: Bytes at which a fragment is complete.
            codec: Compression of fragments.
            stores: Fragment stores; none keeps fragments with the broker.
        """
        named = dict(labels or {})
        if content_type is not None:
            named["content-type"] = content_type
        specs = [
            journal_spec(self.name(name), labels=named, stores=stores, length=length, codec=codec)
            for name in names
        ]
        self.broker.run(create_journals(self.broker.client, *specs))
        return [spec.name for spec in specs]

    def delete(self, *names: str) -> None:
        """Delete journals. Their fragments stay in the store."""
        changes = [
            pb.ApplyRequest.Change(delete=self.name(name), expect_mod_revision=-1) for name in names
        ]
        self.broker.run(self.broker.client.apply(changes))

    def append(self, name: str, content: bytes) -> tuple[int, int]:
        """Append content, and return the range at which it is."""
        fragment = self.broker.run(self.broker.client.append(self.name(name), content)).commit
        return fragment.begin, fragment.end

    def publish(
        self, name: str, documents: Iterable[Any], producer: Producer | None = None
    ) -> tuple[int, int]:
        """Append documents which are committed at once, and return the range at which they are."""
        producer = producer or Producer()
        return self.append(name, b"".join(producer.outside(document) for document in documents))

    def transaction(
        self,
        name: str,
        documents: Iterable[Any],
        producer: Producer | None = None,
        *,
        commit: bool = True,
    ) -> tuple[int, int]:
        """Append documents of one transaction, and its acknowledgement if it's to commit.

        One which isn't is committed by a later `append(name, producer.ack())`.
        """
        producer = producer or Producer()
        content = b"".join(producer.pending(document) for document in documents)
        return self.append(name, content + (producer.ack() if commit else b""))

    def suspend(self, name: str) -> pb.JournalSpec.Suspend:
        """Suspend a journal, wholly if it has no content, and return how it is."""
        request = pb.AppendRequest(
            journal=self.name(name), suspend=pb.AppendRequest.Suspend.SUSPEND_NOW
        )
        with contextlib.suppress(pb.SuspendedError):  # By which it's told.
            self.broker.run(self.broker.client.append(request))
        selector = pb.parse_label_selector(f"name={self.name(name)}")
        (listed,) = self.broker.run(self.broker.client.list(selector)).journals
        return listed.spec.suspend

    def expire(self, name: str) -> None:
        """Have all that a journal holds expire."""
        self.persist(name)
        for file in self.files(name):
            file.unlink()
        self.broker.run(self.broker.embedded.refresh(self.name(name)))

    def persist(self, *names: str) -> None:
        """Close the current fragments, and write them to their stores."""
        for name in names:
            self.broker.run(self.broker.embedded.flush(self.name(name)))
            self.broker.run(self.broker.embedded.refresh(self.name(name)))

    def files(self, name: str) -> list[Path]:
        """Return the files of a journal's persisted fragments, in order."""
        return sorted((self.broker.file_root / self.name(name)).rglob("*-*-*"))

    def head(self, name: str) -> int:
        """Return the offset behind a journal's content."""
        return self.append(name, b"")[1]

    def content(self, name: str) -> bytes:
        """Return all content of a journal, as a broker tells it."""
        head = self.head(name)
        return self.broker.run(self._content(self.name(name), head)) if head else b""

    async def _content(self, journal: str, head: int) -> bytes:
        content = b""
        async with self.broker.client.read(journal, end_offset=head) as reader:
            while chunk := await reader.read():
                content += chunk
        return content

    def committed(self, *names: str, adapter: Adapter[T] = JSON) -> list[T]:
        """Return the committed messages of journals, as a reader which isn't Spark sees them."""
        journals = [self.name(name) for name in names]
        return self.broker.run(self._committed(journals, adapter))

    async def _committed(self, journals: list[str], adapter: Adapter[T]) -> list[T]:
        async with ReadCommittedIter(
            journals, adapter, client=self.broker.client, block=False, skip_acks=True
        ) as iterator:
            return [envelope.message async for envelope in iterator]
