"""Count pairs of words, and answer how often they came: a consumer with RPCs of its own.

Any member takes texts, and publishes how often each pair of words is in them, to the partition of
the pair. The shard of a partition adds the numbers up in an SQLite database, which its recovery log
records. Any member answers which pairs begin with a prefix: it asks the members that serve the
shards, which answer once they have read what's in their partitions at the time of the request.

This program runs two members within one process, and ends one of them in between:

    python -m examples.word_count

A member of a group on Etcd, and its clients:

    python -m examples.word_count serve --broker.address=http://localhost:8080
    python -m examples.word_count publish http://localhost:8090 'to be or not to be'
    python -m examples.word_count query http://localhost:8090 to
"""

from __future__ import annotations

import asyncio
import re
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import msgspec

import gazette_aio.protocol as pb
from gazette_aio import ACK_TXN, Publisher, json_adapter
from gazette_aio.client.reads.head import head_of
from gazette_aio.consumer import Application, SQLiteStore, main
from gazette_aio.message import modulo_mapping
from gazette_aio.protocol.consumer import ShardSpec
from gazette_aio.testing import consumer_harness, create_journals, journal_spec

if TYPE_CHECKING:
    from gazette_aio import Envelope, JournalClient
    from gazette_aio.consumer import Service, Shard
    from gazette_aio.message import Adapter
    from gazette_aio.protocol import JournalSpec
    from gazette_aio.testing import ConsumerHarness

SERVICE, PUBLISH, QUERY = "examples.Words", "Publish", "Query"
PARTITIONS = "app.gazette.dev/message-type=examples.PairCount"
COMMANDS = {"publish": PUBLISH, "query": QUERY}

SCHEMA = """
CREATE TABLE IF NOT EXISTS sums (pair TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID
"""
ADD = """
INSERT INTO sums (pair, count) VALUES (?, ?)
ON CONFLICT (pair) DO UPDATE SET count = count + excluded.count
"""
FIND = "SELECT pair, count FROM sums WHERE pair >= ?1 AND pair < ?1 || char(0x10FFFF)"

TEXTS = ("To be, or not to be", "To be counted once, and not twice")


class PairCount(msgspec.Struct):
    """A pair of words, and how often it came."""

    pair: str
    count: int


Counts = dict[str, int]


class Question(msgspec.Struct):
    """A request for the pairs that begin with a prefix."""

    prefix: str
    shard: str = ""
    """Shard to ask; empty for all."""
    offsets: dict[str, int] = {}
    """What the shard must have read, by journal."""
    header: bytes = b""
    """Of the member that forwards the request, for the member that serves the shard."""


def pairs_of(text: str) -> Counts:
    """Return how often each pair of words is in a text."""
    words = ["START", *re.findall(r"[^\W\d_]+", text.lower()), "END"]
    counts: Counts = {}
    for pair in pairwise(words):
        counts[" ".join(pair)] = counts.get(" ".join(pair), 0) + 1
    return counts


class WordCount(Application[PairCount, SQLiteStore]):
    """Counts pairs of words. It's of one member."""

    def adapter(self, spec: JournalSpec) -> Adapter[PairCount]:
        """Counts are lines of JSON."""
        return json_adapter(PairCount)

    def new_store(self, shard: Shard, recorder: Any) -> SQLiteStore:
        """Sums are in a database, which the shard's recovery log restores."""
        return SQLiteStore(recorder, schema=SCHEMA)

    async def consume_message(
        self,
        shard: Shard,
        store: SQLiteStore,
        envelope: Envelope[PairCount],
        publisher: Publisher[Any],
    ) -> None:
        """Add a count to the sum of its pair."""
        if envelope.flags == ACK_TXN:
            return
        message = envelope.message
        db = await store.transaction()
        db.execute(ADD, (message.pair, message.count))

    async def init_application(self, service: Service) -> None:
        """Serve texts and questions."""
        words = Words(service, await service.client.list(PARTITIONS))
        handlers = {
            PUBLISH: grpc.unary_unary_rpc_method_handler(words.publish),
            QUERY: grpc.unary_unary_rpc_method_handler(words.query),
        }
        service.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])


class Words:
    """RPCs of a member, whose requests and responses are JSON."""

    def __init__(self, service: Service, partitions: pb.ListResponse) -> None:
        self._service = service
        self._journals = [each.spec.name for each in partitions.journals]
        self._publisher = Publisher(service.client.appends, json_adapter(PairCount))
        # A pair stays in its partition for as long as no partition is added.
        self._mapping = modulo_mapping(lambda message: message.pair.encode(), lambda: partitions)

    async def publish(self, request: bytes, _context: Any) -> bytes:
        """Publish the counts of a text, all or none, and return how many there are."""
        counts = pairs_of(msgspec.json.decode(request, type=str))
        async with self._publisher.transaction():
            for pair, count in counts.items():
                await self._publisher.publish_uncommitted(self._mapping, PairCount(pair, count))
        return msgspec.json.encode(len(counts))

    async def query(self, request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        """Return the pairs that begin with a prefix, and their sums."""
        question = msgspec.json.decode(request, type=Question)
        try:
            found = await (self._ask(question) if question.shard else self._ask_all(question))
        except (pb.ShardStatusError, grpc.aio.AioRpcError) as error:
            # A member has gone, and its shards aren't assigned anew yet: ask again.
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return msgspec.json.encode(dict(sorted(found.items())))

    async def _ask_all(self, question: Question) -> Counts:
        found: Counts = {}
        for journal in self._journals:
            offsets = {journal: await head_of(self._service.client, journal)}
            for spec in self._service.resolver.shards_with_source(journal):
                found |= await self._ask(Question(question.prefix, spec.id, offsets))
        return found

    async def _ask(self, question: Question) -> Counts:
        is_proxied = bool(question.header)
        async with self._service.resolve(
            question.shard,
            may_proxy=not is_proxied,
            proxy_header=pb.Header.FromString(question.header) if is_proxied else None,
            read_through=question.offsets,
        ) as resolution:
            resolution.raise_for_status()
            if isinstance(resolution.store, SQLiteStore):
                return dict(await resolution.store.execute(FIND, (question.prefix,)))
            question.header = resolution.header.SerializeToString()
            reply = await call(self._service.peer_channel(resolution), QUERY, question)
            return msgspec.json.decode(reply, type=Counts)


async def call(channel: grpc.aio.Channel, method: str, request: object) -> bytes:
    """Call an RPC of a member."""
    stub: Any = channel.unary_unary(f"/{SERVICE}/{method}")
    reply: bytes = await stub(msgspec.json.encode(request))
    return reply


async def ask(endpoint: str, method: str, request: object) -> Any:
    """Call an RPC of the member at an endpoint, and return its response."""
    direct = [("grpc.enable_http_proxy", 0)]  # The member is on this machine.
    async with grpc.aio.insecure_channel(
        endpoint.removeprefix("http://"), options=direct
    ) as channel:
        return msgspec.json.decode(await call(channel, method, request))


async def create_partitions(client: JournalClient, count: int) -> list[ShardSpec]:
    """Create partitions and recovery logs, and return the specs of their shards."""
    label, _, message_type = PARTITIONS.partition("=")
    labels = {label: message_type, "content-type": "application/x-ndjson"}
    log = {"content-type": "application/x-gazette-recoverylog"}
    specs: list[ShardSpec] = []
    for number in range(count):
        spec = ShardSpec(
            id=f"words-{number:03}",
            recovery_log_prefix="examples/word-count/recovery",
            hint_prefix="/examples/word-count/hints",
            hint_backups=2,
        )
        spec.max_txn_duration.seconds = 1
        spec.sources.add(journal=f"examples/word-count/pairs/part-{number:03}")
        await create_journals(
            client,
            journal_spec(spec.sources[0].journal, labels=labels),
            journal_spec(f"{spec.recovery_log_prefix}/{spec.id}", labels=log),
        )
        specs.append(spec)
    return specs


async def demonstrate(harness: ConsumerHarness) -> None:
    """Publish and query by either of two members, the first of which exits in between."""
    specs = await create_partitions(harness.client, 4)
    first = await harness.start_member(WordCount(), id="first")
    second = await harness.start_member(WordCount(), id="second")
    await harness.create_shards(*specs)
    await harness.wait_for_shards()
    print(await ask(first.endpoint, PUBLISH, TEXTS[0]), "pairs")
    for member in (first, second):
        print(await ask(member.endpoint, QUERY, Question("to ")))
    await harness.stop_member(first)
    print(await ask(second.endpoint, PUBLISH, TEXTS[1]), "pairs")
    await harness.wait_for_shards()
    print(await ask(second.endpoint, QUERY, Question("to ")))


async def run() -> None:
    """Run the demonstration."""
    async with consumer_harness() as harness:
        await demonstrate(harness)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        asyncio.run(run())
    elif sys.argv[1] in COMMANDS:
        command, address, text = sys.argv[1:]
        request = text if command == "publish" else Question(text)
        print(asyncio.run(ask(address, COMMANDS[command], request)))
    else:
        main(WordCount())
