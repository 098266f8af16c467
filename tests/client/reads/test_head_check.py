"""Reads at an offset beyond the write head, which fail, and at the head, which wait."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import BufferedRetryReader, JournalClient, connect
from gazette_aio.client.reads.head import head_of
from gazette_aio.client.reads.head_check import HeadCheck
from gazette_aio.message import ReadCommittedIter, ReadUncommittedIter, json_adapter
from gazette_aio.testing.stub_broker import StubBroker, StubError
from tests.client.support import header
from tests.head_checks import hasten_head_checks
from tests.waiting import eventually, turns

NAME = "anew/journal"
OFFSET, HEAD = 1290, 12
ONE, TWO = (pb.ProcessSpec.ID(zone="zone", suffix=suffix) for suffix in ("one", "two"))
BEYOND = rf"^offset {OFFSET} is beyond the write head {HEAD} of journal {NAME}, which was deleted"


def answer(head: int, by: pb.ProcessSpec.ID, *, primary: int = 0) -> pb.ReadResponse:
    route = pb.Route(members=[ONE, TWO], primary=primary)
    header = pb.Header(process_id=by, route=route)
    return pb.ReadResponse(write_head=head, offset=head, header=header)


@pytest.mark.parametrize(
    ("looks", "verdict"),
    [
        pytest.param([(0, answer(OFFSET, TWO))], False, id="any broker knows the head"),
        pytest.param([(0, answer(HEAD, ONE))], None, id="one look isn't enough"),
        pytest.param([(0, answer(HEAD, ONE)), (4.9, answer(HEAD, ONE))], None, id="too early"),
        pytest.param([(0, answer(HEAD, ONE)), (5, answer(HEAD + 1, ONE))], True, id="confirmed"),
        pytest.param(
            [(0, answer(HEAD, ONE)), (5, None), (6, answer(OFFSET, ONE))], False, id="it lagged"
        ),
        pytest.param(
            [(0, answer(HEAD, ONE)), (2, None), (3, answer(HEAD, TWO)), (5, answer(HEAD, ONE))],
            True,
            id="others don't count",
        ),
        pytest.param([(at, answer(HEAD, TWO)) for at in range(100)], None, id="only a replica"),
        pytest.param(
            [(at, answer(HEAD, ONE, primary=-1)) for at in range(100)], None, id="no primary"
        ),
        pytest.param([(at, None) for at in range(100)], None, id="no answer"),
        pytest.param(
            [
                (0, answer(HEAD, ONE)),
                (4, answer(HEAD, TWO, primary=1)),
                (8, answer(HEAD, TWO, primary=1)),
            ],
            None,
            id="a new primary begins anew",
        ),
        pytest.param(
            [(0, answer(HEAD, TWO)), (6, answer(HEAD, ONE)), (11, answer(HEAD, ONE))],
            True,
            id="the time runs from the primary's first answer",
        ),
    ],
)
def test_what_looks_amount_to(
    looks: Sequence[tuple[float, pb.ReadResponse | None]], verdict: bool | None
) -> None:
    check = HeadCheck(100.0)
    found = [check.note(seen, OFFSET, 100.0 + at) for at, seen in looks]
    assert found == [None] * (len(looks) - 1) + [verdict]
    assert check.due == 100.0 + looks[-1][0] + 1


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hasten_head_checks(monkeypatch)


@pytest.fixture
async def served(quick: None) -> AsyncIterator[tuple[EmbeddedBroker, JournalClient]]:
    """A journal with much less content than the one of that name before it."""
    async with EmbeddedBroker(fsync="off") as broker, connect(broker.endpoint) as client:
        spec = pb.JournalSpec(name=NAME, replication=1)
        spec.labels.labels.add(name="content-type", value="application/x-ndjson")
        spec.fragment.length = 1 << 20
        spec.fragment.refresh_interval.seconds = 60
        spec.fragment.compression_codec = pb.CompressionCodec.NONE
        await client.apply([pb.ApplyRequest.Change(upsert=spec)])
        await client.append(NAME, b'{"value":1}\n')
        yield broker, client


async def test_readers_fail_beyond_the_head(served: tuple[EmbeddedBroker, JournalClient]) -> None:
    _, client = served
    async with client.read(NAME, offset=OFFSET, block=True) as reader:
        for _ in range(2):  # A later read checks anew.
            with pytest.raises(pb.OffsetBeyondHeadError, match=BEYOND) as raised:
                await reader.read()
        assert reader.offset == OFFSET
        error = pickle.loads(pickle.dumps(raised.value))
        assert (error.journal, error.offset, error.write_head) == (NAME, OFFSET, HEAD)
        # The journal may have become longer, in the hands of somebody who knows of it.
        await client.append(NAME, bytes(OFFSET - HEAD) + b"content")
        assert await reader.read() == b"content"
    async with client.read(NAME, offset=5000, block=True) as source:
        with pytest.raises(pb.OffsetBeyondHeadError):
            await BufferedRetryReader(source).readline()


async def test_reads_that_do_not_block_say_so(
    served: tuple[EmbeddedBroker, JournalClient],
) -> None:
    _, client = served
    text = f"^offset {OFFSET} is beyond the write head {HEAD}: OFFSET_NOT_YET_AVAILABLE"
    async with client.read(NAME, offset=OFFSET) as reader:
        with pytest.raises(pb.OffsetNotYetAvailableError, match=text):
            await reader.read()
    async with client.read(NAME, offset=HEAD) as reader:
        with pytest.raises(pb.OffsetNotYetAvailableError, match=r"^OFFSET_NOT_YET_AVAILABLE"):
            await reader.read()
        await reader.check_head()


@pytest.mark.parametrize("block", [True, False])
@pytest.mark.parametrize("iterator", [ReadCommittedIter, ReadUncommittedIter])
@pytest.mark.parametrize("source", [NAME, [NAME, "other/journal"], "name=anew/journal"])
async def test_messages_after_a_checkpoint_beyond_the_head(
    served: tuple[EmbeddedBroker, JournalClient], iterator: Any, source: Any, block: bool
) -> None:
    _, client = served
    if isinstance(source, list):
        spec = (await client.list()).journals[0].spec
        spec.name = source[1]
        await client.apply([pb.ApplyRequest.Change(upsert=spec)])
    if isinstance(source, str) and "=" in source:
        source = pb.parse_label_selector(source)
    async with iterator(
        source, json_adapter(), client=client, block=block, start={NAME: OFFSET}
    ) as messages:
        with pytest.raises(pb.OffsetBeyondHeadError, match=BEYOND):
            await anext(messages)


async def test_a_read_at_the_head_waits(served: tuple[EmbeddedBroker, JournalClient]) -> None:
    broker, client = served
    looks = broker.control.observe("read", journal=NAME)
    async with client.read(NAME, offset=HEAD, block=True) as reader:
        reading = asyncio.create_task(reader.read())
        await eventually(lambda: looks.hits == 2)
        await asyncio.wait((reading,), timeout=0.3)  # Thrice the time after which it would fail.
        assert not reading.done()
        await client.append(NAME, b"content")
        assert await reading == b"content"
        # What was read in this RPC shows the head, so that nothing more is asked for.
        reading = asyncio.create_task(reader.read())
        await asyncio.wait((reading,), timeout=0.1)
        await client.append(NAME, b"more")
        assert await reading == b"more"
    assert looks.hits == 2


async def test_a_primary_that_lists_its_stores_decides_nothing(
    served: tuple[EmbeddedBroker, JournalClient],
) -> None:
    """Its head may be far behind until then."""
    broker, client = served
    hold = broker.control.hold("list_fragments", journal=NAME)
    async with client.read(NAME, offset=OFFSET, block=True) as reader:
        reading = asyncio.create_task(reader.read())
        await hold.held()
        await asyncio.wait((reading,), timeout=0.3)
        assert not reading.done()
        # Content doesn't wait for the broker that is asked.
        await client.append(NAME, bytes(OFFSET - HEAD) + b"content")
        assert await reading == b"content"
        hold.remove()


async def test_a_look_is_cancelled(served: tuple[EmbeddedBroker, JournalClient]) -> None:
    broker, client = served
    looks = broker.control.observe("list_fragments", journal=NAME)
    hold = broker.control.hold("list_fragments", journal=NAME)
    async with client.read(NAME, offset=OFFSET, block=True) as reader:
        for count in (1, 2):
            reading = asyncio.create_task(reader.read())
            await looks.seen(count)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        reading = asyncio.create_task(reader.read())
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        hold.remove()


async def test_a_read_that_was_answered_looks_at_nothing(
    served: tuple[EmbeddedBroker, JournalClient],
) -> None:
    _, client = served

    def is_looking() -> bool:
        return any("gazette head" in task.get_name() for task in asyncio.all_tasks())

    async with client.read(NAME, offset=1, block=True) as reader:
        assert await reader.read() == b'"value":1}\n'
        reading = asyncio.create_task(reader.read())
        await turns()
        await eventually(lambda: not is_looking())
        await client.append(NAME, b"more")
        assert await reading == b"more"


async def test_a_probe_of_the_head_has_one_time_limit(
    client: JournalClient, broker: StubBroker
) -> None:
    probes: list[pb.ReadRequest] = []

    async def silent(request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
        probes.append(request)
        await asyncio.Event().wait()
        yield pb.ReadResponse()

    broker.read_handler = silent
    with pytest.raises(pb.OperationTimeoutError, match=f"probe of journal {NAME} timed out"):
        await head_of(client, NAME, 0.5)
    assert len(probes) <= 1  # A busy machine may not begin it in time.


async def test_a_probe_of_the_head_is_retried_within_its_time_limit(
    client: JournalClient, broker: StubBroker
) -> None:
    probes: list[pb.ReadRequest] = []

    async def answers_at_last(request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
        probes.append(request)
        if len(probes) >= 3:
            status = pb.Status.OFFSET_NOT_YET_AVAILABLE
            yield pb.ReadResponse(status=status, header=header(), offset=HEAD, write_head=HEAD)
        elif len(probes) == 2:
            raise StubError(grpc.StatusCode.UNAVAILABLE, "stopping")

    broker.read_handler = answers_at_last
    assert await head_of(client, NAME) == HEAD
