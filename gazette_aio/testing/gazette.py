"""All of Gazette for one test: broker, client, publishers and topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.message import (
    ACK_TXN,
    Publisher,
    ReadCommittedIter,
    json_adapter,
    modulo_mapping,
    random_mapping,
)
from gazette_aio.testing.specs import create_journals, journal_spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.broker import EmbeddedBroker
    from gazette_aio.client import JournalClient
    from gazette_aio.message import Adapter, Envelope
    from gazette_aio.message.mapping import Mapping

T = TypeVar("T")

NDJSON = "application/x-ndjson"


class Topic(Generic[T]):
    """Journals of a test that hold messages of one type. Made by `Gazette.topic()`."""

    def __init__(
        self,
        name: str,
        adapter: Adapter[T],
        listing: pb.ListResponse,
        key: Callable[[T], bytes] | None,
    ) -> None:
        self.name = name
        """Name of the topic, and value of the label `topic` of its journals."""
        self.adapter = adapter
        """Adapter of the messages."""
        self.journals: tuple[str, ...] = tuple(each.spec.name for each in listing.journals)
        """Names of the journals."""
        self.selector: pb.LabelSelector = pb.parse_label_selector(f"topic={name}")
        """Selector of the journals."""
        self.mapping: Mapping[T] = (
            random_mapping(lambda: listing) if key is None else modulo_mapping(key, lambda: listing)
        )
        """Journal of a message: that of its key, or any."""

    def __repr__(self) -> str:
        return f"<Topic {self.name!r} of {len(self.journals)} journals>"


class Gazette:
    """Broker, client, publishers and topics of a test: the fixture `gazette`.

    Args:
        broker: The broker.
        client: Client of the broker.
    """

    def __init__(self, broker: EmbeddedBroker, client: JournalClient) -> None:
        self.broker = broker
        """The broker, with `control` to make it fail."""
        self.client = client
        """Client of the broker."""

    async def journal(self, name: str = "test/journal", **options: Any) -> str:
        """Create a journal, and return its name.

        Args:
            name: Name of the journal.
            **options: Options of `journal_spec()`.

        Raises:
            ValidationError: The name is invalid.
            EtcdTransactionFailedError: The journal exists.

        Cancellation: aborts — the journal may have been created.
        """
        await create_journals(self.client, journal_spec(name, **options))
        return name

    async def topic(
        self,
        name: str,
        adapter: Adapter[Any] | None = None,
        *,
        partitions: int = 1,
        key: Callable[[Any], bytes] | None = None,
        content_type: str = NDJSON,
    ) -> Topic[Any]:
        """Create the journals of a topic.

        Args:
            name: Name of the topic, and prefix of its journals: `NAME/part-000` and so on.
            adapter: Adapter of the messages; None for dictionaries as JSON.
            partitions: Number of journals; 1 by default.
            key: Returns the key of a message, which decides its journal; None chooses journals at
                random.
            content_type: Content type of the journals; JSON lines by default.

        Raises:
            ValidationError: The name is invalid.
            EtcdTransactionFailedError: A journal exists. None was created.

        Cancellation: aborts — the journals may have been created.
        """
        labels = {"content-type": content_type, "topic": name}
        specs = [
            journal_spec(f"{name}/part-{number:03}", labels=labels) for number in range(partitions)
        ]
        await create_journals(self.client, *specs)
        listing = await self.client.list(pb.parse_label_selector(f"topic={name}"))
        return Topic(name, json_adapter() if adapter is None else adapter, listing, key)

    def publisher(self, topic: Topic[T]) -> Publisher[T]:
        """Return a new publisher of the messages of a topic."""
        return Publisher(self.client.appends, topic.adapter)

    async def publish(self, topic: Topic[T], *messages: T) -> None:
        """Publish messages that commit by themselves, and wait until they are appended.

        Raises:
            GazetteError: A message couldn't be published.

        Cancellation: aborts — some messages may have been published.
        """
        publisher = self.publisher(topic)
        pending = [
            await publisher.start_publish_committed(topic.mapping, each) for each in messages
        ]
        for append in pending:
            await append

    async def committed(self, topic: Topic[T]) -> list[Envelope[T]]:
        """Return the messages of a topic that are committed now, each journal in its order.

        Acknowledgements aren't included.

        Raises:
            GazetteError: A journal can't be read.

        Cancellation: safe.
        """
        names = list(topic.journals)
        async with ReadCommittedIter(names, topic.adapter, client=self.client) as messages:
            return [each async for each in messages if each.flags != ACK_TXN]

    def __repr__(self) -> str:
        return f"<Gazette at {self.broker.endpoint}>"
