"""Appending: one at a time, and many small ones through the append service."""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc.aio

import gazette_aio.protocol as pb
from benchmarks.harness import Subject, constant, measure
from benchmarks.measures.events import served_journals
from gazette_aio.protocol.service import APPEND

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from gazette_aio.client import AppendService, JournalClient

JOURNALS = [f"bench/appends/part-{number}" for number in range(4)]
CONTENT = b"x" * 99 + b"\n"
TASKS = 50
APPENDS_PER_TASK = 100
ONE_SHOT_APPENDS = 300
BULK_APPENDS = 200_000
BULK_PER_SECOND = 300_000.0
AWAITING_TASKS = 25_000
AWAITED_CONTENT = b"x" * 31 + b"\n"
"""All of it fits into what a journal holds in memory, as waiting for a disk isn't the subject."""
MANY_JOURNALS = 1000
APPENDS_PER_JOURNAL = 10


@measure(
    "append_service.small",
    goal=5.0,
    unit="/s",
    about="appends of 100 bytes by 50 tasks through the append service, each awaited, against "
    "one append() after the other",
)
async def appending() -> AsyncGenerator[Subject]:
    async with served_journals(*JOURNALS) as client:

        async def append_in_service(number: int) -> None:
            journal = JOURNALS[number % len(JOURNALS)]
            for _ in range(APPENDS_PER_TASK):
                async with client.appends.append(journal) as pending:
                    pending.write(CONTENT)
                await pending

        async def figure() -> float:
            begun = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for number in range(TASKS):
                    group.create_task(append_in_service(number))
            return TASKS * APPENDS_PER_TASK / (time.perf_counter() - begun)

        async def yardstick() -> float:
            begun = time.perf_counter()
            for number in range(ONE_SHOT_APPENDS):
                await client.append(JOURNALS[number % len(JOURNALS)], CONTENT)
            return ONE_SHOT_APPENDS / (time.perf_counter() - begun)

        yield Subject(figure, yardstick)


@asynccontextmanager
async def bare_stub(client: JournalClient) -> AsyncGenerator[Any]:
    """Yield the stub of Append as code which grpcio-tools generates sets it up."""
    async with grpc.aio.insecure_channel(client.endpoint.removeprefix("http://")) as channel:
        yield channel.stream_unary(
            APPEND,
            request_serializer=pb.AppendRequest.SerializeToString,
            response_deserializer=pb.AppendResponse.FromString,
        )


async def append_bare(stub: Any, journal: str) -> None:
    """Append by the least which a program without this package gets by with."""
    call = stub()
    await call.write(pb.AppendRequest(journal=journal))
    await call.write(pb.AppendRequest(content=CONTENT))
    await call.write(pb.AppendRequest())
    await call.done_writing()
    response = await call
    assert response.status == pb.Status.OK, response


@measure(
    "append.p50",
    goal=1.3,
    unit="ms",
    better="less",
    about="median round trip of append() of 100 bytes, against that of a bare stub which "
    "appends the same",
)
async def round_trips() -> AsyncGenerator[Subject]:
    journal = JOURNALS[0]
    async with served_journals(journal) as client, bare_stub(client) as stub:
        # Both take turns within a round, so that what else the machine does is common to them.
        ours: list[float] = []
        bare: list[float] = []

        async def figure() -> float:
            ours.clear()
            bare.clear()
            for _ in range(ONE_SHOT_APPENDS):
                begun = time.perf_counter()
                await client.append(journal, CONTENT)
                between = time.perf_counter()
                await append_bare(stub, journal)
                ours.append(between - begun)
                bare.append(time.perf_counter() - between)
            return statistics.median(ours) * 1e3

        async def yardstick() -> float:
            return statistics.median(bare) * 1e3

        await client.append(journal, CONTENT)
        await append_bare(stub, journal)
        yield Subject(figure, yardstick)


@measure(
    "append_service.released",
    goal=1.0,
    unit="/s",
    about="appends of 100 bytes to one journal which are started, written and released one "
    "after the other, up to the commit of all of them, against 300,000/s",
)
async def releasing() -> AsyncGenerator[Subject]:
    journal = JOURNALS[0]
    async with served_journals(journal) as client:
        service = client.appends

        async def figure() -> float:
            begun = time.perf_counter()
            for _ in range(BULK_APPENDS):
                append = await service.start_append(journal)
                append.write(CONTENT)
                append.release()
            await service.flush()
            return BULK_APPENDS / (time.perf_counter() - begun)

        await figure()
        yield Subject(figure, constant(BULK_PER_SECOND))


async def start_many(service: AppendService, journal: str) -> None:
    for _ in range(BULK_APPENDS):
        append = await service.start_append(journal)
        append.write(CONTENT)
        append.release()


async def enter_many(service: AppendService, journal: str) -> None:
    for _ in range(BULK_APPENDS):
        async with service.append(journal) as append:
            append.write(CONTENT)


async def try_many(service: AppendService, journal: str) -> None:
    for _ in range(BULK_APPENDS):
        if service.try_append(journal, CONTENT) is None:
            append = await service.start_append(journal)
            append.write(CONTENT)
            append.release()


async def against_trying(
    append_many: Callable[[AppendService, str], Awaitable[None]],
) -> AsyncGenerator[Subject]:
    journal = JOURNALS[0]
    async with served_journals(journal) as client:
        service = client.appends

        async def rate_of(append: Callable[[AppendService, str], Awaitable[None]]) -> float:
            begun = time.perf_counter()
            await append(service, journal)
            await service.flush()
            return BULK_APPENDS / (time.perf_counter() - begun)

        await rate_of(try_many)
        yield Subject(partial(rate_of, append_many), partial(rate_of, try_many))


for form, many, what, least in [
    ("start", start_many, "started, written and released", 0.85),
    ("context", enter_many, "written within a context", 0.7),
]:
    measure(
        f"append_service.{form}",
        goal=least,
        unit="/s",
        rounds=9,
        about=f"appends of 100 bytes to one journal which are {what} one after the other, up to "
        "the commit of all of them, against try_append",
    )(partial(against_trying, many))


@measure(
    "append_service.awaited",
    goal=0.5,
    unit="/s",
    rounds=9,
    about="appends of 32 bytes to one journal, each in a task of its own which awaits it, "
    "against bare tasks each of which awaits a future",
)
async def awaiting() -> AsyncGenerator[Subject]:
    journal = JOURNALS[0]
    async with served_journals(journal) as client:
        service = client.appends

        async def append() -> None:
            append = await service.start_append(journal)
            append.write(AWAITED_CONTENT)
            append.release()
            await append

        async def figure() -> float:
            begun = time.perf_counter()
            tasks = [asyncio.create_task(append()) for _ in range(AWAITING_TASKS)]
            for task in tasks:
                await task
            return AWAITING_TASKS / (time.perf_counter() - begun)

        async def yardstick() -> float:
            loop = asyncio.get_running_loop()
            futures: list[asyncio.Future[None]] = []

            async def wait() -> None:
                future = loop.create_future()
                futures.append(future)
                await future

            begun = time.perf_counter()
            tasks = [asyncio.create_task(wait()) for _ in range(AWAITING_TASKS)]
            await asyncio.sleep(0)  # Each begins to wait.
            for future in futures:
                future.set_result(None)
            for task in tasks:
                await task
            return AWAITING_TASKS / (time.perf_counter() - begun)

        await figure()
        yield Subject(figure, yardstick)


@measure(
    "append_service.journals",
    goal=5.0,
    unit="/s",
    rounds=3,
    about="10 appends of 100 bytes to each of 1,000 journals, up to the commit of all of them, "
    "against one append by a bare stub to each of them, all at once",
)
async def many_journals() -> AsyncGenerator[Subject]:
    journals = [f"bench/appends/part-{number:04}" for number in range(MANY_JOURNALS)]
    async with served_journals(*journals) as client, bare_stub(client) as stub:
        service = client.appends

        async def figure() -> float:
            tasks = len(asyncio.all_tasks())
            begun = time.perf_counter()
            for _ in range(APPENDS_PER_JOURNAL):
                for journal in journals:
                    append = await service.start_append(journal)
                    append.write(CONTENT)
                    append.release()
            await service.flush()
            elapsed = time.perf_counter() - begun
            await asyncio.sleep(0)
            assert len(asyncio.all_tasks()) <= tasks, "a task of an idle journal"
            return MANY_JOURNALS * APPENDS_PER_JOURNAL / elapsed

        async def yardstick() -> float:
            begun = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for journal in journals:
                    group.create_task(append_bare(stub, journal))
            return MANY_JOURNALS / (time.perf_counter() - begun)

        await figure()
        yield Subject(figure, yardstick)
