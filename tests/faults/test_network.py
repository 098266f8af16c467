"""What happens to connections doesn't happen to appends, reads, listings and watches."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import Appender, AsyncAppend, JournalClient, RetryPolicy, connect
from gazette_aio.testing import Direction, FaultProxy, create_journals, journal_spec
from tests.broker.caller import calling
from tests.faults.support import FAULTS, JOURNAL, JOURNALS, strike
from tests.waiting import eventually, turns

RECORD = b"%05d;"
each_fault = pytest.mark.parametrize("fault", FAULTS)


def records(count: int) -> bytes:
    return b"".join(RECORD % number for number in range(count))


@each_fault
async def test_reads(proxy: FaultProxy, client: JournalClient, fault: str) -> None:
    """Each byte is read once and in order, whatever came of the connection meanwhile."""
    content = records(40_000)
    await client.append(JOURNAL, content)
    received = bytearray()
    async with client.read(JOURNAL, block=True) as reader:
        async for chunk in reader:
            received += chunk
            if len(received) - len(chunk) < 100_000 <= len(received):
                await strike(proxy, fault)
            if len(received) >= len(content):
                break
        assert received == content
        assert reader.offset == len(content)

        # It waits at the head when it strikes again.
        waiting = asyncio.create_task(reader.read())
        await turns()
        await strike(proxy, fault)
        await client.append(JOURNAL, b"more")
        assert b"moremore".startswith(await waiting)  # It's there at least once.


@each_fault
async def test_appends(proxy: FaultProxy, client: JournalClient, fault: str) -> None:
    """What's told to be appended is, as a whole; a precondition keeps it from being there twice."""
    strikes = 0

    async def content() -> AsyncIterator[bytes]:
        nonlocal strikes
        yield records(10_000)
        strikes += 1
        if strikes == 1:
            await strike(proxy, fault)
        yield records(10_000)

    response = await client.append(JOURNAL, content)
    expected = records(10_000) * 2
    assert response.commit.end - response.commit.begin == len(expected)

    # The acknowledgement is lost, and so it may be there already.
    head = response.commit.end
    passed = proxy.passed_bytes(Direction.TO_SERVER)

    async def strike_behind_content() -> None:
        await eventually(lambda: proxy.passed_bytes(Direction.TO_SERVER) > passed)
        await strike(proxy, fault)

    striking = asyncio.create_task(strike_behind_content())
    with contextlib.suppress(pb.WrongAppendOffsetError):
        await client.append(pb.AppendRequest(journal=JOURNAL, offset=head), b"once")
    await striking
    assert (await client.append(JOURNAL)).commit.end == head + 4
    async with client.read(JOURNAL, offset=head - len(expected), end_offset=head + 4) as reader:
        assert b"".join([chunk async for chunk in reader]) == expected + b"once"


@each_fault
async def test_the_append_service(proxy: FaultProxy, client: JournalClient, fault: str) -> None:
    """It goes on by itself. Order holds, and what's told to be somewhere is."""
    appends: list[AsyncAppend] = []
    for number in range(200):
        append = await client.appends.start_append(JOURNAL)
        append.write(RECORD % number)
        append.release()
        appends.append(append)
        if number % 40 == 20:
            await strike(proxy, fault)
        if number % 10 == 9:
            await appends[-10]
    await asyncio.gather(*appends)
    head = (await client.append(JOURNAL)).commit.end
    async with client.read(JOURNAL, end_offset=head) as reader:
        content = b"".join([chunk async for chunk in reader])
    for number, append in enumerate(appends):
        begin, end = append.commit_range
        assert content[begin:end] == RECORD % number
    numbers = [int(text) for text in content.decode().split(";")[:-1]]
    seen = -1
    for number in numbers:
        assert number <= seen + 1  # A batch is repeated as a whole, never skipped.
        seen = max(seen, number)
    assert seen == 199


@each_fault
async def test_listings(proxy: FaultProxy, client: JournalClient, fault: str) -> None:
    names = [f"many/{number:04}" for number in range(500)]
    for begin in range(0, 500, 100):
        await create_journals(client, *map(journal_spec, names[begin : begin + 100]))
    listing = asyncio.create_task(client.list("name:prefix=many/"))
    passed = proxy.passed_bytes(Direction.TO_CLIENT)
    await eventually(lambda: listing.done() or proxy.passed_bytes(Direction.TO_CLIENT) > passed)
    await strike(proxy, fault)
    assert [journal.spec.name for journal in (await listing).journals] == names


@each_fault
async def test_watches(proxy: FaultProxy, client: JournalClient, fault: str) -> None:
    async with client.watch("name:prefix=watched/") as watched:
        assert not (await watched.ready()).journals
        for number in range(3):
            await strike(proxy, fault)
            # One which expects no revision may be repeated, and so is retried.
            change = pb.ApplyRequest.Change(
                upsert=journal_spec(f"watched/{number}"), expect_mod_revision=-1
            )
            await client.apply([change])
            async for listing in watched.updates():
                if len(listing.journals) == number + 1:
                    break


@pytest.mark.parametrize("direction", Direction)
async def test_a_stall_of_any_length_loses_nothing(
    proxy: FaultProxy, client: JournalClient, direction: Direction
) -> None:
    async with client.read(JOURNAL, block=True) as reader:
        await client.append(JOURNAL, b"first")
        assert await reader.read() == b"first"
        proxy.stall(direction)
        append = client.appends.try_append(JOURNAL, b"second")
        assert append is not None
        waiting = asyncio.create_task(reader.read())
        async with calling(str(proxy.upstream)) as beside:
            for _ in range(20):
                await beside.commit(b"beside the proxy", JOURNALS[1])
        assert not waiting.done()
        assert not append.done()
        proxy.resume()
        await append
        assert await waiting == b"second"


async def test_nobody_answers_within_the_time_out(proxy: FaultProxy, client: JournalClient) -> None:
    """A connection which is accepted, and that's all."""
    proxy.stall()
    begin = time.monotonic()
    async with connect(
        proxy.endpoint, connect_timeout=0.2, retry=RetryPolicy(max_attempts=1)
    ) as other:
        with pytest.raises(pb.TransportError, match="no broker answers"):
            await other.list()
        assert time.monotonic() - begin < 15
        reading = asyncio.create_task(other.read(JOURNAL).read())
        await turns()
        reading.cancel()
        await asyncio.wait((reading,))
    assert time.monotonic() - begin < 15
    proxy.resume()


async def test_closing_is_bounded_while_nothing_passes(
    proxy: FaultProxy, client: JournalClient
) -> None:
    other = connect(proxy.endpoint, drain_timeout=0.1)
    await other.append(JOURNAL, b"content")
    reader = other.read(JOURNAL, block=True)
    assert await reader.read() == b"content"
    watched = other.watch("name:prefix=a/")
    await watched.__aenter__()
    await watched.ready()
    proxy.stall()
    appends = [other.appends.try_append(name, b"content") for name in (JOURNAL, "b/journal")]
    appender = Appender(other, pb.AppendRequest(journal=JOURNAL))
    await appender.write(b"content")
    begin = time.monotonic()
    await appender.abort()
    await watched.aclose()
    await reader.aclose()
    await other.aclose()
    assert time.monotonic() - begin < 15
    for append in appends:
        assert append is not None
        assert isinstance(append.exception(), pb.TransportError)
    proxy.resume()


async def test_a_network_which_is_down_for_long(proxy: FaultProxy, client: JournalClient) -> None:
    """What began while it was down is done once it's up again, and errors tell what went on."""
    failures: list[pb.GazetteError] = []

    def note(failure: object) -> None:
        failures.append(failure.error)  # type: ignore[attr-defined]

    await proxy.refuse()
    policy = RetryPolicy(backoff=lambda _: 0.02, on_error=note)
    async with connect(proxy.endpoint, retry=policy) as other:
        reader = other.read(JOURNAL, block=True)
        reading = asyncio.create_task(reader.read())
        append = other.appends.try_append(JOURNAL, b"content")
        assert append is not None
        await eventually(lambda: len(failures) > 5)
        assert not append.done()
        proxy.heal()
        await append
        assert await reading == b"content"
        await reader.aclose()
    assert {error.code for error in failures if isinstance(error, pb.TransportError)} == {
        "UNAVAILABLE"
    }
    assert all(error.retryable for error in failures if isinstance(error, pb.TransportError))
