"""Clients which don't mean well: nobody else notices, and nothing grows for them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

import gazette_aio.protocol as pb
from benchmarks.attacks.raw_http2 import PREFACE, RST_STREAM, connected, frame
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.testing import BrokerProcess
from tests.broker.caller import Caller, calling, eventually, journal_spec
from tests.broker.test_load import MIB, OPTIONS, needs_proc, others, resident_bytes

pytestmark = pytest.mark.slow

CANCEL = (8).to_bytes(4)


@contextlib.asynccontextmanager
async def undisturbed(endpoint: str) -> AsyncIterator[None]:
    """Have somebody else append and read all along, who must get on at the end too."""
    async with others(endpoint) as count:
        yield
        before = count["turns"]

        async def went_on() -> bool:
            return count["turns"] > before + 5

        await eventually(went_on)


async def idle(broker: EmbeddedBroker) -> None:
    """Wait until nobody is served."""
    metrics = broker.core.metrics

    async def is_idle() -> bool:
        return metrics.started.total() == metrics.completed.total() and not any(
            r.index.waiters or r.head.is_busy for r in broker.core.replicas
        )

    await eventually(is_idle)


@needs_proc
async def test_responses_which_are_never_read(tmp_path: Path) -> None:
    connections, size = 12, 32 * MIB
    async with AsyncExitStack() as stack:
        process = await stack.enter_async_context(BrokerProcess(tmp_path, options=OPTIONS))
        caller = await stack.enter_async_context(calling(process.endpoint))
        many = [journal_spec(f"test/many-{number:03}") for number in range(100)]
        await caller.create(journal_spec(length=1 << 30), journal_spec("test/other"), *many)
        content = random.Random(3).randbytes(MIB)
        await caller.commit(content * (size // MIB))
        assert await caller.read(end_offset=size // 4) == content * (size // 4 // MIB)
        async with undisturbed(process.endpoint):
            before = resident_bytes(process.pid)
            for _ in range(connections):
                raw = await stack.enter_async_context(connected(process.endpoint))
                await raw.begin()
                for _ in range(4):
                    await raw.open("Read", pb.ReadRequest(journal="test/journal", block=True))
                    await raw.open("List", pb.ListRequest(watch=True))
            # All the watches get a snapshot each time.
            for turn in range(30):
                labels = pb.label_set("turn", str(turn))
                await caller.create(journal_spec("test/many-000", labels=labels))
            grown = resident_bytes(process.pid) - before
            # Each read is ahead of its client by no more than two batches.
            reads = connections * 4
            assert grown < reads * 3 * MIB, f"{reads} reads hold {grown / MIB:.0f} MiB"
        assert await caller.read(end_offset=MIB) == content


async def test_streams_which_are_abandoned(broker: EmbeddedBroker, caller: Caller) -> None:
    await caller.create(journal_spec(), journal_spec("test/other"))
    streams = 1800
    first = pb.AppendRequest(journal="test/journal")
    read = pb.ReadRequest(journal="test/journal", block=True)
    async with undisturbed(broker.endpoint):
        async with connected(broker.endpoint) as raw:
            await raw.begin()
            for number in range(streams):
                # One is reset at once, one waits for nothing to come, one is half an append.
                if number % 3 == 0:
                    stream, data = raw.opening("Read", read)
                    await raw.send(data, frame(RST_STREAM, 0, stream, CANCEL))
                elif number % 3 == 1:
                    await raw.open("Read", read)
                else:
                    await raw.open("Append", first, pb.AppendRequest(content=b"half"), end=False)

            async def all_have_come() -> bool:
                metrics = broker.core.metrics
                return (
                    metrics.started["Read"] >= streams // 3
                    and metrics.started["Append"] >= streams // 3
                )

            await eventually(all_have_come)
        # The connection is cut.
    await idle(broker)
    assert await caller.commit(b"whole") == 0
    assert await caller.read() == b"whole"


async def test_streams_which_are_reset_over_and_over(
    broker: EmbeddedBroker, caller: Caller
) -> None:
    await caller.create(journal_spec(), journal_spec("test/other"))
    whole = [pb.AppendRequest(journal="test/journal"), pb.AppendRequest(content=b"reset")]
    async with undisturbed(broker.endpoint), connected(broker.endpoint) as raw:
        await raw.begin()
        with contextlib.suppress(ConnectionError):
            for _ in range(2000):
                stream, data = raw.opening("Append", *whole, pb.AppendRequest(), end=False)
                await raw.send(data, frame(RST_STREAM, 0, stream, CANCEL))
    await idle(broker)
    assert await caller.commit(b"whole") == 0
    assert await caller.read() == b"whole"


async def test_connections_which_say_nothing(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path, fsync="off")
    async with AsyncExitStack() as stack, broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec("test/other"))
            async with undisturbed(broker.endpoint):
                for number in range(200):
                    raw = await stack.enter_async_context(connected(broker.endpoint))
                    # Nothing, a part of what opens a connection, or no more than that.
                    if number % 3 == 1:
                        await raw.send(PREFACE[: number % len(PREFACE)])
                    elif number % 3 == 2:
                        await raw.begin()
        # They don't agree to the end of their connections, which are cut.
        async with asyncio.timeout(30):
            await broker.stop(0.3)


LONG = "x" * 5 * MIB
OVERSIZED: dict[str, Message] = {
    "Append": pb.AppendRequest(journal=LONG),
    "Apply": pb.ApplyRequest(changes=[pb.ApplyRequest.Change(delete=LONG)]),
    "FragmentStoreHealth": pb.FragmentStoreHealthRequest(fragment_store=LONG),
    "List": pb.ListRequest(
        selector=pb.LabelSelector(include=pb.LabelSet(labels=[pb.Label(name="name", value=LONG)]))
    ),
    "ListFragments": pb.FragmentsRequest(journal=LONG),
    "Read": pb.ReadRequest(journal=LONG),
    "Replicate": pb.ReplicateRequest(content=b"x" * 5 * MIB),
}


async def test_messages_above_the_limit(broker: EmbeddedBroker, caller: Caller) -> None:
    await caller.create(journal_spec(), journal_spec("test/other"))
    target = broker.endpoint.removeprefix("http://")
    async with undisturbed(broker.endpoint), grpc.aio.insecure_channel(target) as channel:
        for name, message in OVERSIZED.items():
            call: Any = channel.stream_stream(f"/protocol.Journal/{name}")
            # A client which still writes may not get to know how it was answered.
            assert await call(iter([message.SerializeToString()])).code() in (
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                grpc.StatusCode.INTERNAL,
            ), name
    await idle(broker)
    assert await caller.commit(b"fine") == 0


async def test_registers_which_grow_above_the_limit(caller: Caller) -> None:
    await caller.create(journal_spec())

    def labels(prefix: str, count: int) -> pb.LabelSet:
        return pb.LabelSet(
            labels=[pb.Label(name=f"{prefix}{n:06}", value="x" * 100) for n in range(count)]
        )

    await caller.commit(b"a", union_registers=labels("a", 2000))
    for more in (labels("b", 2000), labels("c", 4000)):
        with pytest.raises(grpc.aio.AioRpcError, match="too long") as caught:
            await caller.append(b"b", union_registers=more)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    response = await caller.append(b"c")
    assert response.commit.begin == 1
    assert response.registers == labels("a", 2000)


@needs_proc
async def test_messages_which_grow_above_the_limit(tmp_path: Path) -> None:
    async with BrokerProcess(tmp_path, options=OPTIONS) as process:
        async with calling(process.endpoint) as caller:
            await caller.create(journal_spec(), journal_spec("test/other"))
            before = resident_bytes(process.pid)
            first = pb.AppendRequest(journal="test/journal").SerializeToString()
            bomb = pb.AppendRequest(content=bytes(48 * MIB)).SerializeToString()
            target = process.endpoint.removeprefix("http://")
            async with undisturbed(process.endpoint), grpc.aio.insecure_channel(target) as channel:
                append: Any = channel.stream_unary("/protocol.Journal/Append")
                for _ in range(2):
                    call = append(iter([first, bomb, b""]), compression=grpc.Compression.Gzip)
                    assert await call.code() in (
                        grpc.StatusCode.RESOURCE_EXHAUSTED,
                        grpc.StatusCode.INTERNAL,
                    )
            grown = resident_bytes(process.pid) - before
            assert grown < 32 * MIB, f"{grown / MIB:.0f} MiB"
            assert await caller.commit(b"fine") == 0
