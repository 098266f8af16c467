"""Sinks of the tests: what tasks publish, what an oracle reads, and journals without a broker."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import msgspec

import gazette_aio.protocol as pb
from gazette_aio.client.deadline import Deadline
from gazette_aio.client.retry import Failure, Operation
from gazette_aio.message import Sequencer
from gazette_aio.message.adapters.json_types import json_adapter
from gazette_aio.message.envelopes.envelope import Envelope
from gazette_aio.message.uuid import (
    CONTINUE_TXN,
    build_uuid,
    get_clock,
    get_flags,
    get_producer_id,
    parse_uuid,
)
from gazette_aio.spark.sink.commit_records import SinkKey, TaskMessage, ack_template

NDJSON = "application/x-ndjson"
KEY = SinkKey("query", "sink")
LOG = "commits/of-query"
JOURNALS = ["topic/part-000", "topic/part-001", "topic/part-002"]
ADAPTER = json_adapter(dict)
TEMPLATE = ack_template(ADAPTER.acknowledgement, NDJSON)


def line(producer, clock, row, flags=CONTINUE_TXN):
    return ADAPTER.encode({"row": row}, build_uuid(producer, clock, flags)) + b"\n"


def message_of(lease, clocks, journals):
    """The report of a task which published at these clocks."""
    ack = lease.clock.tick()
    lease.finish(ack)
    return TaskMessage(
        lease.key,
        lease.batch,
        lease.producer,
        ack,
        len(clocks),
        tuple((journal, TEMPLATE) for journal in dict.fromkeys(journals)),
        tuple(clocks[journals.index(journal)] for journal in dict.fromkeys(journals)),
    )


async def publish(client, plan, batch, rows, pool, journal_of=lambda row: JOURNALS[row % 3]):
    """Publish rows as a task does, and return its report."""
    lease = pool.take(plan, batch)
    clocks, journals = [], []
    for row in rows:
        clocks.append(lease.clock.tick())
        journals.append(journal_of(row))
        await client.append(journals[-1], line(lease.producer, clocks[-1], row))
    return message_of(lease, clocks, journals)


def committed(journal, content):
    """The rows which a sequencer of its own delivers, with repetitions."""
    sequencer = Sequencer()
    rows, offset = [], 0
    for frame in content.splitlines(keepends=True):
        document = msgspec.json.decode(frame)
        uuid = parse_uuid(document["_meta"]["uuid"])
        envelope = Envelope(
            journal,
            offset,
            offset := offset + len(frame),
            get_clock(uuid),
            get_flags(uuid),
            get_producer_id(uuid),
            document.get("row"),
        )
        sequencer.queue_uncommitted(envelope)
        while sequencer.step():
            if sequencer.dequeued.message is not None:
                rows.append(sequencer.dequeued.message)
    return rows


class Journals:
    """Journals in memory, as a client has them: each RPC is scheduled, and may fail, by a seed.

    An append fails before it takes effect, behind that, or takes effect some time later. Further
    attempts of one RPC follow as its policy says.
    """

    def __init__(self, rng, *, faults=0.2):
        self.context = self
        self.rng = rng
        self.faults = faults
        self.content = {}
        self.turns = []
        self.late = []

    async def turn(self):
        future = asyncio.get_running_loop().create_future()
        self.turns.append(future)
        await future

    def apply(self, request, data):
        content = self.content.setdefault(request.journal, bytearray())
        if request.offset not in (0, len(content)):
            raise pb.WrongAppendOffsetError(journal=request.journal)
        content += data
        end = len(content)
        return SimpleNamespace(commit=SimpleNamespace(begin=end - len(data), end=end))

    def land(self):
        """Have a late append take effect, one of those which did not yet."""
        request, data = self.late.pop(self.rng.randrange(len(self.late)))
        with contextlib.suppress(pb.WrongAppendOffsetError):
            self.apply(request, data)

    async def append(self, request, *content, retry_policy=None, **_):
        if isinstance(request, str):
            request = pb.AppendRequest(journal=request)
        data = b"".join(content)
        for attempt in range(100):
            await self.turn()
            if self.rng.random() >= self.faults:
                response = self.apply(request, data)
                await self.turn()
                return response
            match self.rng.randrange(3):
                case 0:
                    pass
                case 1:
                    self.apply(request, data)
                case _:
                    self.late.append((request, data))
            error = pb.TransportError("UNAVAILABLE", "fault", journal=request.journal)
            await self.turn()
            if retry_policy is not None and retry_policy.on_error is not None:
                retry_policy.on_error(Failure(Operation.APPEND, error, attempt, request))
            if self.rng.random() < 0.2:
                raise error
        raise AssertionError("no end of faults")

    def deadline(self, operation, seconds, *, journal):
        """As that of the context of a client."""
        return Deadline(None, operation, seconds, journal=journal)

    @contextlib.asynccontextmanager
    async def read(self, request, *, retry_policy=None):
        offset = request.offset

        async def read(limit):
            nonlocal offset
            await self.turn()
            content = self.content[request.journal]
            end = min(request.end_offset, offset + self.rng.randrange(1, 400), len(content))
            data, offset = bytes(content[offset:end]), end
            return data

        yield SimpleNamespace(read=read)
