"""Nothing keeps the event loop from others for long, however much there is of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import sorted_rows
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.broker.fragments.cover_index import FragmentCover, pack, query
from gazette_aio.broker.stores import Listed
from gazette_aio.broker.stores.failing import FailingFragmentStore
from tests.broker.caller import journal_spec
from tests.broker.served import serve_append, serve_apply, serve_fragments, serve_list, serve_read
from tests.loop_steps import SLICE_CALLS, counted_calls, longest_step

MOST_CALLS = 2 * SLICE_CALLS
STORE = "file:///many/"
ALL = pb.Claims(capability=pb.Capability.ALL)
LABELS = pb.label_set(*(text for number in range(100) for text in (f"label/{number:03}", "x")))


@asynccontextmanager
async def quick_steps() -> AsyncGenerator[None]:
    """Fail if a step of the event loop takes long meanwhile."""
    with longest_step() as longest:
        await asyncio.sleep(0)
        yield
        await asyncio.sleep(0)
    assert longest.calls < MOST_CALLS, longest.step


def change(name: str) -> pb.ApplyRequest.Change:
    return pb.ApplyRequest.Change(upsert=journal_spec(name, labels=LABELS))


@pytest.mark.parametrize("field", ["check", "union", "subtract"])
async def test_appends_with_many_registers(broker: EmbeddedBroker, field: str) -> None:
    await serve_apply(broker.core, ALL, pb.ApplyRequest(changes=[change("test/journal")]))
    labels = pb.LabelSet(labels=[pb.Label(name=f"a/{n:05}", value="value") for n in range(12_000)])

    async def append(**fields: Any) -> pb.AppendResponse:
        async def messages() -> AsyncIterator[pb.AppendRequest | bytes]:
            yield pb.AppendRequest(journal="test/journal", **fields)
            yield b"content"
            yield b""

        return await serve_append(broker.core, ALL, messages())

    fields = {
        "check": {"check_registers": pb.LabelSelector(include=labels)},
        "union": {"union_registers": labels},
        "subtract": {"subtract_registers": labels},
    }
    async with quick_steps():
        assert (await append(union_registers=labels)).registers == labels
        response = await append(**fields[field])
    assert response.status == pb.Status.OK
    assert len(response.registers.labels) == (0 if field == "subtract" else 12_000)
    async with quick_steps():  # A short request on long registers.
        response = await append(union_registers=pb.label_set("one", "more"))
    assert response.status == pb.Status.OK


async def test_journals_are_created_and_listed(broker: EmbeddedBroker) -> None:
    requests = [
        pb.ApplyRequest(
            changes=[change(f"test/{number:04}") for number in range(start, start + 128)]
        )
        for start in range(0, 512, 128)
    ]
    selector = pb.parse_label_selector("label/001=x")
    found: list[pb.ListResponse] = []

    async def send(response: pb.ListResponse) -> None:
        found.append(response)
        await asyncio.sleep(0)

    async with quick_steps():
        for request in requests:
            assert (await serve_apply(broker.core, ALL, request)).status == pb.Status.OK
        await serve_list(broker.core, ALL, pb.ListRequest(selector=selector), send)
    assert sum(len(response.journals) for response in found) == 512


@pytest.mark.slow
async def test_long_requests(broker: EmbeddedBroker) -> None:
    await serve_apply(broker.core, ALL, pb.ApplyRequest(changes=[change("test/journal")]))
    names = (f"name/{number:06}" for number in range(20_000))
    labels = pb.LabelSet(labels=[pb.Label(name=name, value="x") for name in names])
    members = [pb.ProcessSpec.ID(zone="zone", suffix=f"{number:06}") for number in range(10_000)]
    header = pb.Header(
        etcd=broker.core.resolver.unrouted().etcd, route=pb.Route(members=members, primary=-1)
    )
    found: list[pb.ListResponse] = []

    async def send(response: pb.ListResponse) -> None:
        found.append(response)

    async def receive(response: object) -> None:
        assert isinstance(response, pb.ReadResponse)

    async with quick_steps():
        for selector in (pb.LabelSelector(exclude=labels), pb.LabelSelector(include=labels)):
            await serve_list(broker.core, ALL, pb.ListRequest(selector=selector), send)
        fragments = pb.FragmentsRequest(journal="test/journal", header=header)
        assert (await serve_fragments(broker.core, ALL, fragments)).status == pb.Status.OK
        read = pb.ReadRequest(journal="test/journal", header=header)
        await serve_read(broker.core, ALL, read, receive)
    assert [len(response.journals) for response in found] == [1, 0]


async def test_a_listing_is_of_one_moment(broker: EmbeddedBroker) -> None:
    core = broker.core
    for start in (0, 128):
        changes = [change(f"test/{number:04}") for number in range(start, start + 128)]
        await serve_apply(core, ALL, pb.ApplyRequest(changes=changes))
    revision = core.space.revision
    found: list[pb.ListResponse] = []

    async def send(response: pb.ListResponse) -> None:
        last = pb.ApplyRequest.Change(delete=f"test/{255 - len(found):04}", expect_mod_revision=-1)
        await serve_apply(core, ALL, pb.ApplyRequest(changes=[last, change(f"x/{len(found):03}")]))
        found.append(response)

    await serve_list(core, ALL, pb.ListRequest(), send)
    assert found[0].header.etcd.revision == revision
    names = [journal.spec.name for response in found for journal in response.journals]
    assert names == [f"test/{number:04}" for number in range(256)]
    assert core.space.revision > revision


class ManyFiles(FailingFragmentStore):
    """A store of very many fragments."""

    def __init__(self, count: int) -> None:
        super().__init__(STORE, lambda: pb.StoreError("only listed"))
        self.names = [
            f"{begin:016x}-{begin + 10:016x}-{begin:040x}.raw" for begin in range(0, 10 * count, 10)
        ]

    def list(  # type: ignore[override]
        self,
        prefix: str,
        *,
        skip: frozenset[str] = frozenset(),
    ) -> Iterator[Listed]:
        return (Listed(name, 5) for name in reversed(self.names))


@pytest.mark.slow
async def test_very_many_fragments_are_listed(broker: EmbeddedBroker) -> None:
    """It takes longer than others, as few fragments take no time to drop."""
    core = broker.core
    count = 30_000
    core.stores.get(STORE).replace(ManyFiles(count))
    spec = journal_spec(stores=[STORE])
    await serve_apply(core, ALL, pb.ApplyRequest(changes=[pb.ApplyRequest.Change(upsert=spec)]))
    await broker.refresh("test/journal")
    request = pb.FragmentsRequest(journal="test/journal", page_limit=500, begin_mod_time=6)
    async with quick_steps():
        await broker.refresh("test/journal")
        assert not (await serve_fragments(core, ALL, request)).fragments
        request.begin_mod_time = 5
        page = await serve_fragments(core, ALL, request)
    assert len(page.fragments) == 500
    assert page.next_page_token == 5000
    (replica,) = core.replicas
    assert len(replica.index.cover) == count


def test_old_fragments_are_skipped_at_once() -> None:
    cover = FragmentCover("test/journal")
    store = cover.begin_store(STORE)
    packed = pack(pb.Fragment(compression_codec=pb.CompressionCodec.NONE), store)
    for begin in range(0, 200_000, 10):
        cover.insert(begin, begin + 10, 5, packed)
    with counted_calls() as calls:
        assert query(cover, 3, begin_mod_time=6, now_seconds=1e9) == (None, 200_000)
    assert calls.count < 1000


def test_rows_are_sorted() -> None:
    rows = [((number * 7919) % 5003, number) for number in range(5003)]
    assert list(sorted_rows(rows)) == sorted(rows)
    assert list(sorted_rows([(1,)])) == [(1,)]
    assert not list(sorted_rows(list[tuple[int]]()))
