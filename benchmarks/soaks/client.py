"""Break the network and the broker under every kind of client, over and over.

A broker runs as a process of its own behind a proxy which cuts, resets, half-closes, stalls, delays
and trickles connections at random. It's stopped and killed meanwhile, and tokens last two seconds.

Invariants, checked all the time and at the end:
    - what was acknowledged is at the offsets which were told, and is read once and in order;
    - appends which check a register are there exactly once, whatever was acknowledged;
    - appends of an AppendService are there at least once: repeated ones follow what went before;
    - committed messages are read exactly once and in order, those of aborted transactions never;
    - content which is read again, directly or through the broker, is the same;
    - a watched listing arrives at what was applied, and revisions don't go back;
    - nobody ends, and nobody hangs;
    - no task, file, connection or stream is left at the end.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
import tempfile
import time
from collections import deque
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import gazette_aio.protocol as pb
from benchmarks.soaks.invariant import require
from benchmarks.soaks.journal_check import CommittedCheck, JournalCheck
from benchmarks.soaks.records import Placed, Records
from gazette_aio import JournalClient, connect
from gazette_aio.client import AppendService, AsyncAppend, RetryPolicy, WatchedList
from gazette_aio.message import IntentLog, Publisher, ReadCommittedIter, json_adapter
from gazette_aio.testing import (
    BrokerProcess,
    FaultProxy,
    Faults,
    create_journals,
    journal_spec,
    no_leaks,
)
from gazette_aio.testing.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from gazette_aio.client.retry import Failure

RAW = ("soak/raw/0", "soak/raw/1")
TOPIC = ("soak/topic/0", "soak/topic/1", "soak/topic/2")
CONTENT_TYPE = "application/x-ndjson"
CODECS = (
    pb.CompressionCodec.NONE,
    pb.CompressionCodec.GZIP,
    pb.CompressionCodec.ZSTANDARD,
    pb.CompressionCodec.SNAPPY,
)
TOKEN_SECONDS = 2
HANG_SECONDS = 180.0
"""Seconds within which everybody must get on under faults, also on a busy machine."""
END_SECONDS = 60.0
"""Seconds within which everything must come to its end once faults are over."""
REREAD_RECORDS = 500
REPORT_SECONDS = 5.0
FAULTS = Faults(calm_seconds=(0.02, 1.0), fault_seconds=(0.02, 0.5))


class AbortedError(Exception):
    """Ends a transaction on purpose."""


class Soak:
    """One run.

    Args:
        directory: Directory of all files.
        seed: Where chance comes from.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.rng = random.Random(seed)
        self.key = base64.b64encode(self.rng.randbytes(16)).decode()
        self.proxy = FaultProxy()
        self.checks = [JournalCheck(name) for name in RAW]
        self.committed = CommittedCheck()
        self.is_ending = False
        """Whether writers are to finish."""
        self.events: dict[str, int] = {}
        self.failures: deque[str] = deque(maxlen=40)
        """What clients retried last."""
        self._begin = time.monotonic()
        self._beats: dict[str, float] = {}

    def fork(self) -> random.Random:
        """Return a source of chance of its own."""
        return random.Random(self.rng.randrange(1 << 32))

    def count(self, event: str) -> None:
        """Count an event."""
        self.events[event] = self.events.get(event, 0) + 1

    def beat(self, name: str) -> None:
        """Note that a worker is alive."""
        self._beats[name] = time.monotonic()
        self.count(name)

    def rest(self, name: str) -> None:
        """Note that a worker is done."""
        self._beats.pop(name, None)

    def check_beats(self) -> None:
        """Require that nobody hangs."""
        now = time.monotonic()
        for name, beat in self._beats.items():
            if now - beat > HANG_SECONDS:
                print("\n".join(self.failures), self.proxy, sep="\n")
                require(False, f"{name} hangs for {now - beat:.0f} s")

    def note(self, failure: Failure) -> None:
        """Note what a client is going to retry."""
        self.failures.append(
            f"{time.monotonic() - self._begin:8.2f} {failure.operation.value} attempt"
            f" {failure.attempt}: {failure.error}"
        )

    def connect(
        self, *, file_root: Path | None = None, cache_size: int | None = None
    ) -> JournalClient:
        """Return a client whose tokens don't last."""
        keys = pb.KeyedAuth(self.key)

        def token() -> str:
            claims = pb.Claims(pb.Capability.ALL)
            return keys.sign(claims, timedelta(seconds=TOKEN_SECONDS), time.time())

        return connect(
            self.proxy.endpoint,
            auth=token,
            file_root=file_root,
            cache_size=cache_size,
            retry=RetryPolicy(on_error=self.note),
        )

    # Writers.

    async def write_exact(self, client: JournalClient, check: JournalCheck, name: str) -> None:
        """Append records with a register which tells the last one."""
        writer, rng = check.add_writer(name, is_exact=True), self.fork()
        while not self.is_ending:
            content = writer.next_record(rng)
            number = len(writer.sent) - 1
            request = pb.AppendRequest(journal=check.journal)
            if number:
                label = pb.label_set(name, str(number - 1))
                request.check_registers.include.CopyFrom(label)
            else:
                request.check_registers.exclude.CopyFrom(pb.label_set(name, ""))
            request.union_registers.CopyFrom(pb.label_set(name, str(number)))
            while True:
                try:
                    commit = (await client.append(request, content)).commit
                except pb.RegisterMismatchError as error:
                    # An attempt was committed whose acknowledgement was lost.
                    value = pb.value_of(error.response.registers, name)
                    require(value == str(number), f"{name} {number}: the register is {value!r}")
                    self.count("lost acknowledgements")
                    break
                except pb.TransportError:
                    self.count("failed appends")
                    await asyncio.sleep(0.05)
                else:
                    check.acknowledge(commit.begin, commit.end, writer.sent[number])
                    break
            self.beat(f"writer {check.journal} {name}")
            await asyncio.sleep(rng.uniform(0, 0.04))
        self.rest(f"writer {check.journal} {name}")

    async def write_in_background(
        self, appends: AppendService, check: JournalCheck, name: str
    ) -> None:
        """Append records through an AppendService, many at a time."""
        writer, rng = check.add_writer(name, is_exact=False), self.fork()
        while not self.is_ending:
            pending: list[tuple[AsyncAppend, int]] = []
            for _ in range(rng.randrange(1, 20)):
                if rng.random() < 0.1:
                    with contextlib.suppress(AbortedError):
                        async with appends.append(check.journal) as append:
                            append.write(b"this is rolled back" * 100)
                            raise AbortedError
                async with appends.append(check.journal) as append:
                    content = writer.next_record(rng)
                    append.write(content)
                pending.append((append, len(writer.sent) - 1))
            for append, number in pending:
                await append
                check.acknowledge(*append.commit_range, writer.sent[number])
            self.beat(f"writer {check.journal} {name}")
            await asyncio.sleep(rng.uniform(0, 0.3))
        self.rest(f"writer {check.journal} {name}")

    async def publish(self, client: JournalClient, name: str) -> None:
        """Publish messages in transactions, some of which are aborted."""
        rng = self.fork()
        numbers: dict[str, int] = dict.fromkeys(TOPIC, 0)
        async with AppendService(client) as appends:
            publisher = Publisher(appends, json_adapter(dict))
            log = IntentLog(self.directory / f"intents-{name}")
            while not self.is_ending:
                counts: dict[str, int] = {}
                is_aborted = rng.random() < 0.2
                with contextlib.suppress(AbortedError):
                    async with publisher.transaction(intents=log):
                        for _ in range(rng.randrange(1, 30)):
                            journal = rng.choice(TOPIC)
                            number = numbers[journal] + counts.get(journal, 0)
                            counts[journal] = counts.get(journal, 0) + 1
                            message = {"publisher": name, "number": number, "pad": "x" * 50}
                            await publisher.publish_uncommitted(_to(journal), message)
                        if is_aborted:
                            raise AbortedError
                if not is_aborted:
                    self.committed.commit({(key, name): n for key, n in counts.items()})
                    for journal, number in counts.items():
                        numbers[journal] += number
                self.beat(f"publisher {name}")
                await asyncio.sleep(rng.uniform(0, 0.2))
        self.rest(f"publisher {name}")

    async def change_specs(self, client: JournalClient, watched: WatchedList) -> None:
        """Create and delete journals, and see what is watched arrive there."""
        rng = self.fork()
        names: set[str] = set()
        while not self.is_ending:
            changes: list[pb.ApplyRequest.Change] = []
            for number in rng.sample(range(20), rng.randrange(1, 6)):
                name = f"soak/watched/{number:02}"
                change = pb.ApplyRequest.Change(expect_mod_revision=-1)
                if name in names:
                    change.delete = name
                else:
                    change.upsert.CopyFrom(journal_spec(name))
                names ^= {name}
                changes.append(change)
            while True:
                try:
                    await client.apply(changes)
                except pb.TransportError:
                    await asyncio.sleep(0.05)
                else:
                    break
            async for listing in watched.updates():
                if {journal.spec.name for journal in listing.journals} == names:
                    break
            self.beat("watch")
            await asyncio.sleep(rng.uniform(0, 0.5))
        self.rest("watch")

    # Readers.

    async def read_on(self, client: JournalClient, check: JournalCheck) -> None:
        """Read a journal from its begin, for good."""
        name = f"reader {check.journal}"
        async with client.read(check.journal, block=True) as reader:
            async for chunk in reader:
                check.feed(chunk)
                require(reader.offset == check.offset, f"{name}: {reader.offset} isn't its offset")
                self.beat(name)
        raise AssertionError(f"{name} ended")

    async def read_again(self, client: JournalClient, check: JournalCheck, *, direct: bool) -> None:
        """Read parts of a journal once more, and see that they're the same."""
        rng = self.fork()
        name = f"{'direct ' if direct else ''}rereader {check.journal}"
        while not self.is_ending:
            await asyncio.sleep(rng.uniform(0.05, 0.5))
            known = tuple(check.places)
            if len(known) < 2:
                continue
            begin = rng.randrange(len(known) - 1)
            part = known[begin : begin + rng.randrange(1, REREAD_RECORDS)]
            records = Records(name, part[0].begin)
            found: list[Placed] = []
            async with client.read(
                check.journal,
                offset=part[0].begin,
                end_offset=part[-1].end,
                direct=direct,
                verify=direct,
            ) as reader:
                async for chunk in reader:
                    found += [placed for placed, _ in records.feed(chunk)]
            require(found == list(part), f"{name}: not what was there before")
            self.beat(name)
        self.rest(name)

    async def read_committed(self, client: JournalClient) -> None:
        """Read the messages which were committed, for good."""
        iterator = ReadCommittedIter(
            TOPIC, json_adapter(dict), client=client, block=True, skip_acks=True
        )
        async with iterator:
            async for envelope in iterator:
                message: Any = envelope.message
                self.committed.feed(envelope.journal, message["publisher"], message["number"])
                self.beat("committed reader")
        raise AssertionError("the reader of committed messages ended")

    # Faults.

    async def restart(self, broker: BrokerProcess) -> None:
        """Stop and kill the broker, over and over."""
        rng = self.fork()
        while True:
            await asyncio.sleep(rng.uniform(2.0, 8.0))
            if rng.random() < 0.5:
                await broker.stop()
                self.count("stops")
            else:
                await broker.kill()
                self.count("kills")
            await asyncio.sleep(rng.uniform(0.0, 0.5))
            await broker.start()

    async def watch_over(self, deadline: float) -> None:
        """See to it that nobody hangs, and tell of the progress."""
        begin = time.monotonic()
        report_at = begin + REPORT_SECONDS
        while (now := time.monotonic()) < deadline:
            await asyncio.sleep(min(0.5, deadline - now))
            self.check_beats()
            if now >= report_at:
                report_at += REPORT_SECONDS
                print(f"{now - begin:6.0f} s: {self.summary()}", flush=True)

    def summary(self) -> str:
        """Tell what happened so far."""
        events = self.events
        return (
            f"{sum(check.acknowledged for check in self.checks)} appends,"
            f" {sum(self.committed.committed.values())} committed messages,"
            f" {events.get('watch', 0)} watched changes;"
            f" {sum(n for name, n in events.items() if 'rereader' in name)} rereads,"
            f" {sum(check.repeated for check in self.checks)} repeats,"
            f" {events.get('lost acknowledgements', 0)} lost acknowledgements;"
            f" {self.proxy.accepted} connections, {events.get('stops', 0)} stops,"
            f" {events.get('kills', 0)} kills"
        )

    async def run(self, duration: float) -> None:
        """Run for `duration` seconds, and then as long as it takes to check everything."""
        files = self.directory / "fragments"
        files.mkdir()
        async with self.proxy:
            options = (
                f"--advertise={self.proxy.endpoint}",
                f"--auth-keys={self.key}",
                f"--file-root={files}",
                "--fsync=off",
            )
            port = free_port()
            broker = BrokerProcess(self.directory / "broker", port=port, options=options)
            await broker.start()
            self.proxy.upstream = f"http://127.0.0.1:{port}"
            try:
                async with (
                    self.connect(file_root=files) as client,
                    self.connect(cache_size=0) as other,
                ):
                    await self._create(client)
                    await self._run(broker, client, other, duration)
                    for used in (client, other):
                        require(not used.status().streams, f"{used!r}: streams are left")
                        require(not used.appends.status().batches, f"{used!r}: appends are left")
            finally:
                await broker.kill()

    async def _create(self, client: JournalClient) -> None:
        specs = [
            journal_spec(name, length=1 << 18, codec=self.rng.choice(CODECS), stores=["file:///"])
            for name in RAW
        ] + [
            journal_spec(
                name,
                length=1 << 20,
                codec=self.rng.choice(CODECS),
                stores=["file:///"],
                labels={"content-type": CONTENT_TYPE},
            )
            for name in TOPIC
        ]
        await create_journals(client, *specs)

    async def _run(
        self, broker: BrokerProcess, client: JournalClient, other: JournalClient, duration: float
    ) -> None:
        deadline = time.monotonic() + duration
        async with (
            client.watch("name:prefix=soak/watched/") as watched,
            asyncio.TaskGroup() as group,
        ):

            def begin(*work: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
                return [group.create_task(each) for each in work]

            for check in self.checks:
                self.beat(f"reader {check.journal}")
            self.beat("committed reader")
            readers = begin(
                *(self.read_on(client, check) for check in self.checks), self.read_committed(other)
            )
            writers = begin(
                *(
                    self.write_exact(used, check, f"exact-{number}")
                    for check in self.checks
                    for number, used in enumerate((client, other))
                ),
                *(
                    self.write_in_background(used.appends, check, f"background-{number}")
                    for check in self.checks
                    for number, used in enumerate((client, other, client))
                ),
                *(self.publish(used, str(n)) for n, used in enumerate((client, other))),
                self.read_again(client, self.checks[0], direct=True),
                self.read_again(other, self.checks[1], direct=False),
                self.change_specs(other, watched),
            )
            faults = begin(self.restart(broker), self.proxy.suffer(FAULTS, self.fork()))
            await self.watch_over(deadline)

            await _end(faults)
            self.proxy.heal()
            await broker.stop()
            await broker.start()
            self.is_ending = True
            await self._bounded("writers", asyncio.wait(writers))
            for check in self.checks:
                # Attempts in doubt may have made it, behind what was acknowledged.
                head = (await client.append(check.journal)).commit.end

                def is_read(check: JournalCheck = check, head: int = head) -> bool:
                    return check.offset >= head

                await self._bounded(check.journal, _until(is_read))
                check.finish()
            await self._bounded("messages", _until(lambda: self.committed.is_complete))
            await _end(readers)

    async def _bounded(self, what: str, work: Coroutine[Any, Any, Any]) -> None:
        try:
            async with asyncio.timeout(END_SECONDS):
                await work
        except TimeoutError:
            require(False, f"{what} didn't come to an end")


def _to(journal: str) -> Callable[[Any], tuple[str, str]]:
    return lambda _message: (journal, CONTENT_TYPE)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def soak(duration: float, seed: int) -> None:
    """Run the suite for `duration` seconds."""
    with tempfile.TemporaryDirectory(prefix="gazette-soak-") as directory:
        async with no_leaks(grace_seconds=5.0):
            run = Soak(Path(directory), seed)
            try:
                await run.run(duration)
            except BaseExceptionGroup as group:
                raise _first(group) from group
        print(f"intact: {run.summary()}", flush=True)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what broke first; the rest is what came of it."""
    error: Any = group
    while isinstance(error, BaseExceptionGroup):
        error = cast("Any", error).exceptions[0]
    return cast("BaseException", error)
