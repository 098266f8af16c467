"""Scripted brokers resemble releases, and tell of each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import connect
from gazette_aio.testing import StubBroker
from gazette_aio.testing.stub_broker import Age
from tests.client.support import JOURNAL, MemoryJournals, content, listing, metadata, refusal
from tests.waiting import eventually

AGES: list[Age] = ["newest", "v0.100", "v0.89"]


@pytest.mark.parametrize("age", AGES)
async def test_listings_come_in_messages_of_the_age(age: Age) -> None:
    every = [f"a/{number:04}" for number in range(2030)]
    seen: list[pb.ListRequest] = []
    async with StubBroker(age=age) as broker, connect(broker.endpoint) as client:

        def answer(request: pb.ListRequest) -> pb.ListResponse:
            seen.append(request)
            return listing(*every)

        broker.list_handler = answer
        selector = pb.parse_label_selector("name:prefix=a/")
        stream = await client.context.rpc.list(pb.ListRequest(selector=selector, watch=True))
        sizes = []
        revisions = set()
        for _ in range(82):
            message = await stream.receive()
            if message is None or not message.journals:
                break
            sizes.append(len(message.journals))
            revisions |= {journal.create_revision for journal in message.journals}
        # A watch marks the end of its first snapshot, and an older release ends the RPC.
        assert (message is None) == (age == "v0.89")
        await stream.aclose()
    assert sizes == {"newest": [25] * 81 + [5], "v0.100": [1000, 1000, 30], "v0.89": [2030]}[age]
    assert revisions == ({0} if age == "v0.89" else {3})
    assert seen[0].watch == (age != "v0.89")
    assert seen[0].selector.include.labels[0].prefix == (age != "v0.89")


@pytest.mark.parametrize("age", AGES)
async def test_requests_are_seen_as_of_the_age(age: Age) -> None:
    async with StubBroker(age=age) as broker, connect(broker.endpoint) as client:
        reads: list[pb.ReadRequest] = []
        appends: list[pb.AppendRequest] = []

        async def read(request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
            reads.append(request)
            yield metadata(0)
            yield content(0, b"content")

        memory = MemoryJournals(broker)

        async def append(requests: AsyncIterator[pb.AppendRequest]) -> pb.AppendResponse:
            async def noted() -> AsyncIterator[pb.AppendRequest]:
                async for request in requests:
                    appends.append(request)
                    yield request

            return await memory.answer(noted())

        broker.read_handler, broker.append_handler = read, append
        request = pb.ReadRequest(
            journal=JOURNAL, end_offset=7, begin_mod_time=1, min_etcd_revision=5
        )
        async with client.read(request) as reader:
            assert await reader.read() == b"content"
        await client.append(
            pb.AppendRequest(
                journal=JOURNAL, min_etcd_revision=5, suspend=pb.AppendRequest.SUSPEND_NO_RESUME
            ),
            b"content",
        )
    assert reads[0].end_offset == 7
    assert reads[0].begin_mod_time == (0 if age == "v0.89" else 1)
    assert reads[0].min_etcd_revision == (5 if age == "newest" else 0)
    assert appends[0].min_etcd_revision == (5 if age == "newest" else 0)
    assert bool(appends[0].suspend) == (age == "newest")
    assert [request.content for request in appends[1:]] == [b"content", b""]


@pytest.mark.parametrize("age", AGES)
async def test_missing_rpcs(age: Age) -> None:
    async with StubBroker(age=age) as broker, connect(broker.endpoint) as client:
        broker.health_handler = lambda request: pb.FragmentStoreHealthResponse(
            header=broker.header()
        )
        if age == "newest":
            assert (await client.fragment_store_health("file:///")).status == pb.Status.OK
        else:
            with pytest.raises(pb.TransportError, match="UNIMPLEMENTED"):
                await client.fragment_store_health("file:///")


async def test_missing_statuses() -> None:
    broker = StubBroker(age="v0.100")
    await broker.start()
    async with connect(broker.endpoint) as client:
        broker.read_responses.put_nowait(refusal(pb.Status.SUSPENDED))
        broker.finish()
        with pytest.raises(pb.SuspendedError):
            await client.read(JOURNAL).read()
        broker.read_requests.get_nowait()
    with pytest.raises(AssertionError, match=r"SUSPENDED, which v0\.100 doesn't know$"):
        await broker.aclose()


async def test_the_rest_of_an_answer_which_was_given_up_needs_no_reader() -> None:
    broker = StubBroker()
    await broker.start()
    broker.read_responses.put_nowait(metadata(0))
    broker.read_responses.put_nowait(content(0, b"some"))
    async with connect(broker.endpoint) as client, client.read(JOURNAL) as reader:
        assert await reader.read() == b"some"
    broker.read_requests.get_nowait()
    async with asyncio.timeout(60):
        await eventually(lambda: not broker.open_rpcs)
    broker.read_responses.put_nowait(content(4, b"rest"))
    broker.finish()
    broker.read_responses.put_nowait(metadata(0))
    with pytest.raises(AssertionError, match=r"^left of the script: 1 read responses$"):
        await broker.aclose()


async def test_brokers_tell_of_each_other() -> None:
    async with (
        StubBroker(zone="b", suffix="first") as one,
        StubBroker(zone="a", suffix="second") as two,
    ):
        alone = one.header()
        assert alone.process_id == one.process_id
        assert list(alone.route.endpoints) == [one.endpoint]
        assert alone.route.primary == 0
        two.advertised = "http://elsewhere:80"
        both = two.header(one, two, primary=one, revision=7)
        pb.validate(both)
        assert both.process_id == two.process_id
        assert list(both.route.members) == [two.process_id, one.process_id]
        assert list(both.route.endpoints) == ["http://elsewhere:80", one.endpoint]
        assert both.route.primary == 1
        assert both.etcd.revision == 7
        assert two.header(one).route.primary == -1
