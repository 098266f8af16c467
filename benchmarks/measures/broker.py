"""The broker against a bare gRPC server, which does next to nothing with the same messages.

Both run in processes of their own, and are called by the same stubs, which don't serialize: only
the servers differ.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import tempfile
import time
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc.aio

import gazette_aio.protocol as pb
from benchmarks.bare_server import (
    APPEND_COMMIT,
    APPEND_INTERVAL,
    BARE_READ,
    CHUNK_BYTES,
    STORE,
)
from benchmarks.harness import Subject, constant, measure
from benchmarks.server_process import server_process
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import connect, list_all_fragments
from gazette_aio.protocol.service import APPEND, READ
from gazette_aio.testing import BrokerProcess, create_journals, journal_spec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
CHUNKS = 512
"""Chunks of a bulk read or append: 64 MiB."""
CONTENT = b"x" * 99 + b"\n"
SMALL_APPENDS = 400
CONCURRENT = 50
APPENDS_PER_TASK = 12


def journal(number: int) -> str:
    return f"bench/journal-{number:02}"


@asynccontextmanager
async def servers(fsync: str) -> AsyncGenerator[tuple[grpc.aio.Channel, grpc.aio.Channel]]:
    """Yield channels of a broker with journals, and of a bare server."""
    with tempfile.TemporaryDirectory(prefix="gazette-bench-") as directory:
        async with (
            BrokerProcess(Path(directory), options=[f"--fsync={fsync}"]) as broker,
            server_process("benchmarks.bare_server") as target,
            connect(broker.endpoint) as client,
            grpc.aio.insecure_channel(broker.endpoint.removeprefix("http://"), OPTIONS) as served,
            grpc.aio.insecure_channel(target, OPTIONS) as bare,
        ):
            # One fragment takes all: rolling isn't what's measured.
            specs = [journal_spec(journal(n), length=1 << 34) for n in range(CONCURRENT)]
            await create_journals(client, *specs)
            for number in range(CONCURRENT):
                # The first append of a journal is a fragment of its own.
                await client.append(journal(number), CONTENT)
            yield served, bare


def append_messages(name: str, chunks: Sequence[bytes]) -> list[bytes]:
    first = pb.AppendRequest(journal=name).SerializeToString()
    return [first, *(pb.AppendRequest(content=chunk).SerializeToString() for chunk in chunks), b""]


async def send(stub: Any, messages: Sequence[bytes]) -> bytes:
    """Make a call of a stream of messages, and return the answer."""
    call = stub()
    for message in messages:
        await call.write(message)
    await call.done_writing()
    answer: bytes = await call
    return answer


def committed(answer: bytes) -> None:
    assert pb.AppendResponse.FromString(answer).HasField("commit"), answer


async def receive(stub: Any, request: bytes, least: int) -> float:
    """Receive messages of at least so many bytes in all; return megabytes per second."""
    begun = time.perf_counter()
    count = 0
    async for message in stub(request):
        count += len(message)
    elapsed = time.perf_counter() - begun
    assert count >= least, count
    return count / elapsed / 1e6


@asynccontextmanager
async def stored_broker(root: str, *, verify: bool) -> AsyncGenerator[grpc.aio.Channel]:
    """Yield a channel of a broker with a journal, whose files are below the root."""
    options = ["--fsync=off", f"--file-root={root}", f"--verify-fragments={verify}"]
    with tempfile.TemporaryDirectory(prefix="gazette-bench-") as directory:
        async with (
            BrokerProcess(Path(directory), options=options) as broker,
            connect(broker.endpoint) as client,
            grpc.aio.insecure_channel(broker.endpoint.removeprefix("http://"), OPTIONS) as channel,
        ):
            await create_journals(client, journal_spec(journal(0), stores=["file:///"]))
            await list_all_fragments(client, pb.FragmentsRequest(journal=journal(0)))
            yield channel


@measure(
    "broker.read.stored",
    goal=0.5,
    unit="MB/s",
    rounds=9,
    about="one reader of a persisted fragment of 64 MiB, whose SHA-1 sum is checked, against "
    "a broker that checks none",
)
async def reading_stored() -> AsyncGenerator[Subject]:
    content = CONTENT * (CHUNKS * CHUNK_BYTES // len(CONTENT))
    fragment = pb.Fragment(
        journal=journal(0),
        end=len(content),
        sum=pb.sha1_sum(content),
        compression_codec=pb.CompressionCodec.NONE,
    )
    with tempfile.TemporaryDirectory(prefix="gazette-bench-") as directory:
        path = Path(directory, pb.content_path(fragment))
        await asyncio.to_thread(path.parent.mkdir, parents=True)
        await asyncio.to_thread(path.write_bytes, content)
        versions = itertools.count()

        async def figure(verify: bool) -> float:
            # Another version of the file is checked anew.
            await asyncio.to_thread(os.utime, path, ns=(0, next(versions)))
            return await receive(stubs[verify], request.SerializeToString(), len(content))

        async with (
            stored_broker(directory, verify=True) as checking,
            stored_broker(directory, verify=False) as trusting,
        ):
            stubs = {
                True: cast("Any", checking.unary_stream(READ)),
                False: cast("Any", trusting.unary_stream(READ)),
            }
            request = pb.ReadRequest(journal=journal(0), end_offset=len(content))
            yield Subject(partial(figure, True), partial(figure, False))


@measure(
    "broker.read",
    goal=0.7,
    unit="MB/s",
    rounds=9,
    about="one blocking reader of 64 MiB, against a bare server which sends the same chunks",
)
async def reading() -> AsyncGenerator[Subject]:
    async with servers("interval") as (served, bare):
        messages = append_messages(journal(0), [bytes(CHUNK_BYTES)] * CHUNKS)
        answer = pb.AppendResponse.FromString(await send(served.stream_unary(APPEND), messages))
        begin, end = answer.commit.begin, answer.commit.end
        request = pb.ReadRequest(journal=journal(0), offset=begin, end_offset=end, block=True)
        stub = cast("Any", served.unary_stream(READ))
        yield Subject(
            partial(receive, stub, request.SerializeToString(), end - begin),
            partial(receive, bare.unary_stream(BARE_READ), b"%d" % CHUNKS, end - begin),
        )


@measure(
    "broker.append_bulk",
    goal=0.7,
    unit="MB/s",
    rounds=9,
    about="one append of 64 MiB which is synced in intervals, against a bare server which "
    "hashes it by SHA-1 and writes it",
)
async def appending() -> AsyncGenerator[Subject]:
    async with servers("interval") as (served, bare):
        messages = append_messages(journal(0), [bytes(CHUNK_BYTES)] * CHUNKS)

        async def append(stub: Any) -> float:
            begun = time.perf_counter()
            await send(stub, messages)
            return CHUNKS * CHUNK_BYTES / (time.perf_counter() - begun) / 1e6

        yield Subject(
            partial(append, served.stream_unary(APPEND)),
            partial(append, bare.stream_unary(STORE)),
        )


async def appending_small(fsync: str, bare_append: str) -> AsyncGenerator[Subject]:
    async with servers(fsync) as (served, bare):
        messages = append_messages(journal(0), [CONTENT])

        async def latency(stub: Any) -> float:
            taken: list[float] = []
            for _ in range(SMALL_APPENDS):
                begun = time.perf_counter()
                await send(stub, messages)
                taken.append(time.perf_counter() - begun)
            return statistics.median(taken) * 1e3

        append = cast("Any", served.stream_unary(APPEND))
        committed(await send(append, messages))
        yield Subject(partial(latency, append), partial(latency, bare.stream_unary(bare_append)))


async def appending_at_once(fsync: str, bare_append: str) -> AsyncGenerator[Subject]:
    async with servers(fsync) as (served, bare):
        messages = [append_messages(journal(number), [CONTENT]) for number in range(CONCURRENT)]

        async def append(stub: Any, number: int) -> None:
            for _ in range(APPENDS_PER_TASK):
                await send(stub, messages[number])

        async def rate(stub: Any) -> float:
            begun = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for number in range(CONCURRENT):
                    group.create_task(append(stub, number))
            return CONCURRENT * APPENDS_PER_TASK / (time.perf_counter() - begun)

        stub = cast("Any", served.stream_unary(APPEND))
        for number in range(CONCURRENT):
            committed(await send(stub, messages[number]))
        yield Subject(partial(rate, stub), partial(rate, bare.stream_unary(bare_append)))


for mode, bare_append, suffix in (
    ("interval", APPEND_INTERVAL, ""),
    ("commit", APPEND_COMMIT, ".commit"),
):
    measure(
        f"broker.append_small.{mode}",
        goal=1.33,
        unit="ms",
        better="less",
        about=f"median latency of an append of 100 bytes with --fsync={mode}, against a bare "
        "server that writes and syncs as much",
    )(partial(appending_small, mode, bare_append))
    measure(
        f"broker.append_50{suffix}",
        goal=0.7,
        unit="/s",
        about=f"appends of 100 bytes by 50 tasks to 50 journals with --fsync={mode}, against a "
        "bare server that writes and syncs as much",
    )(partial(appending_at_once, mode, bare_append))


@measure(
    "broker.append_registers",
    goal=1.0,
    unit="ms",
    better="less",
    about="longest step of the event loop, in processor time, while appends check, unite and "
    "subtract registers of almost 256 KiB, against 10 ms",
)
async def appending_registers() -> AsyncGenerator[Subject]:
    labels = pb.LabelSet(
        labels=[pb.Label(name=f"a/{number:05}", value="value") for number in range(12_000)]
    )
    requests = [
        pb.AppendRequest(journal=journal(0), union_registers=labels),
        pb.AppendRequest(journal=journal(0), check_registers=pb.LabelSelector(include=labels)),
        pb.AppendRequest(journal=journal(0), subtract_registers=labels),
    ]
    content = append_messages(journal(0), [CONTENT])[1:]
    messages = [[request.SerializeToString(), *content] for request in requests]
    async with (
        EmbeddedBroker() as broker,
        connect(broker.endpoint) as client,
        grpc.aio.insecure_channel(broker.endpoint.removeprefix("http://"), OPTIONS) as channel,
    ):
        await create_journals(client, journal_spec(journal(0)))
        stub = cast("Any", channel.stream_unary(APPEND))

        async def longest() -> float:
            gaps: list[float] = []

            async def look() -> None:
                seen = time.thread_time()
                while True:
                    await asyncio.sleep(0)
                    seen, before = time.thread_time(), seen
                    gaps.append(seen - before)

            looking = asyncio.create_task(look())
            for each in messages:
                committed(await send(stub, each))
            looking.cancel()
            return max(gaps) * 1e3

        yield Subject(longest, constant(10.0))
