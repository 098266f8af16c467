"""Kill a broker over and over under concurrent writers: nothing acknowledged is ever lost.

Invariants, checked after every restart and at the end:
    - what was acknowledged is at its offsets, byte for byte;
    - acknowledged ranges don't overlap;
    - an append which wasn't acknowledged is there whole, or not at all;
    - the write head doesn't go back behind what was acknowledged;
    - registers are those which the content leads to;
    - fragments cover the journal from its begin to its head, without a hole;
    - changes of the key space which were acknowledged remain, each whole or not at all, and
      revisions don't go back;
    - persisted fragments hold the content which their names tell (at the end).
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

import gazette_aio.protocol as pb
from benchmarks.soaks.invariant import require
from benchmarks.soaks.ledger import ContentCheck, Ledger, removes_register
from benchmarks.soaks.records import record
from gazette_aio import JournalClient, connect
from gazette_aio.client import RetryPolicy, list_all_fragments
from gazette_aio.testing import BrokerProcess, create_journals, journal_spec
from gazette_aio.testing.ports import free_port

JOURNALS = 3
WRITERS = 4
LONGEST_PAUSE = 0.01
FSYNC = ("commit", "interval", "off")
CODECS = (
    pb.CompressionCodec.NONE,
    pb.CompressionCodec.GZIP,
    pb.CompressionCodec.ZSTANDARD,
    pb.CompressionCodec.SNAPPY,
)
LENGTHS = (1 << 15, 1 << 17, 1 << 20)
GRACEFUL = 0.1
"""Share of the rounds which end the broker in order."""


RETRY = RetryPolicy(backoff=lambda _: 0.05)
"""Policy of every client: the default retries must survive the end of a broker."""


async def write(client: JournalClient, ledger: Ledger, writer: str, seed: int) -> None:
    """Append records until cancelled."""
    rng = random.Random(seed)
    for number in itertools.count():
        content = record(writer, number, rng)
        name = ledger.attempt(content)
        request = pb.AppendRequest(journal=ledger.journal)
        if removes_register(number):
            request.subtract_registers.CopyFrom(pb.label_set(writer, str(number - 1)))
        else:
            request.union_registers.CopyFrom(pb.label_set(writer, str(number)))
        response = await client.append(request, content)
        commit = response.commit
        ledger.acknowledge(commit.begin, commit.end, len(content), name)
        await asyncio.sleep(rng.uniform(0, LONGEST_PAUSE))


class KeySpaceLedger:
    """What the only one who changes these journals knows of them."""

    def __init__(self) -> None:
        self.turn = 0
        self.mod_revision = 0
        self.revision = 0

    def changes(self) -> list[pb.ApplyRequest.Change]:
        """Return the next transaction: it updates a journal, creates one and deletes one."""
        turn = self.turn + 1
        spec = journal_spec("soak/spec/kept", labels={"turn": str(turn)})
        new = journal_spec(f"soak/spec/{turn:08}", labels={"turn": str(turn)})
        changes = [
            pb.ApplyRequest.Change(upsert=spec, expect_mod_revision=self.mod_revision),
            pb.ApplyRequest.Change(upsert=new),
        ]
        if self.turn:
            old = f"soak/spec/{self.turn:08}"
            changes.append(pb.ApplyRequest.Change(delete=old, expect_mod_revision=-1))
        return changes

    def saw(self, header: pb.Header) -> int:
        """Note the revision of an answer."""
        revision = header.etcd.revision
        require(revision >= self.revision, f"revision {revision} behind {self.revision}")
        self.revision = revision
        return revision

    def check(self, listing: pb.ListResponse) -> None:
        """Require that a listing shows the last transaction, or the one in doubt behind it."""
        self.saw(listing.header)
        turns = {
            journal.spec.name: int(pb.value_of(journal.spec.labels, "turn"))
            for journal in listing.journals
        }
        turn = turns.pop("soak/spec/kept", 0)
        require(turn in (self.turn, self.turn + 1), f"turn {turn} of the specs, not {self.turn}")
        expected = {f"soak/spec/{turn:08}": turn} if turn else {}
        require(turns == expected, f"turn {turn} of the specs, but there are {sorted(turns)}")
        newest = max((journal.mod_revision for journal in listing.journals), default=0)
        if turn == self.turn:
            require(newest == self.mod_revision, f"mod_revision {newest} in turn {turn}")
        require(newest >= self.mod_revision, f"mod_revision {newest} after {self.mod_revision}")
        self.turn, self.mod_revision = turn, newest


async def change_specs(client: JournalClient, ledger: KeySpaceLedger, seed: int) -> None:
    """Change journals until cancelled."""
    rng = random.Random(seed)
    while True:
        try:
            response = await client.apply(ledger.changes())
            ledger.mod_revision = ledger.saw(response.header)
            ledger.turn += 1
        except pb.GazetteError:
            # The broker was killed, and may have made the changes: see whether it did.
            with suppress(pb.TransportError):
                ledger.check(await client.list("name:prefix=soak/spec/"))
        await asyncio.sleep(rng.uniform(0, LONGEST_PAUSE * 4))


async def check_tail(client: JournalClient, ledger: Ledger, check: ContentCheck) -> None:
    """Read what a journal has got since the last time, and require all invariants."""
    acknowledged = {b: e for b, e in ledger.acknowledged.items() if b >= check.offset}
    before = ledger.head
    barrier = await client.append(ledger.journal)
    head = barrier.commit.end
    require(head >= before, f"{ledger.journal}: head {head}, acknowledged up to {before}")
    await feed(client, ledger.journal, check, head)
    check.finish(head, acknowledged)
    registers = {label.name: label.value for label in barrier.registers.labels}
    require(
        registers == check.registers,
        f"{ledger.journal} at {head}: registers {registers}, not {check.registers}",
    )
    end = 0
    for fragment in (await list_all_fragments(client, ledger.journal)).fragments:
        begin = fragment.spec.begin
        require(begin <= end, f"{ledger.journal}: no fragment covers [{end}, {begin})")
        end = fragment.spec.end
    require(end >= head, f"{ledger.journal}: fragments end at {end} of {head}")


async def feed(
    client: JournalClient,
    journal: str,
    check: ContentCheck,
    head: int,
    copy: IO[bytes] | None = None,
) -> None:
    """Read a journal on from where `check` is, up to `head`."""
    if check.offset == head:
        return
    async with client.read(journal, offset=check.offset, end_offset=head) as reader:
        async for chunk in reader:
            check.feed(chunk)
            if copy is not None:
                copy.write(chunk)


async def check_whole(client: JournalClient, ledger: Ledger, files: Path) -> tuple[int, int]:
    """Read a journal and its persisted fragments whole; return its length and their number."""
    barrier = await client.append(ledger.journal)
    head = barrier.commit.end
    check = ContentCheck(ledger)
    with tempfile.TemporaryFile() as copy:
        await feed(client, ledger.journal, check, head, copy)
        check.finish(head, ledger.acknowledged)
        registers = {label.name: label.value for label in barrier.registers.labels}
        require(registers == check.registers, f"{ledger.journal}: registers {registers}")
        count = 0
        for path in sorted((files / ledger.journal).glob("*-*")):
            if not path.name.startswith("."):
                _check_file(ledger.journal, path, copy)
                count += 1
    return head, count


def _check_file(journal: str, path: Path, copy: IO[bytes]) -> None:
    fragment = pb.parse_fragment(journal, path.name)
    length = fragment.end - fragment.begin
    codec = fragment.compression_codec
    content = b"".join(pb.decompress_all(codec, path.read_bytes()))
    copy.seek(fragment.begin)
    require(content == copy.read(length), f"{path}: not the content of the journal")
    digest = hashlib.sha1(content, usedforsecurity=False).digest()
    require(digest == pb.sum_to_digest(fragment.sum), f"{path}: not the sum of its name")


def rolling_journal(name: str, rng: random.Random) -> pb.JournalSpec:
    """Return a journal whose fragments roll often."""
    codec, length = rng.choice(CODECS), rng.choice(LENGTHS)
    return journal_spec(name, length=length, codec=codec, stores=["file:///"])


async def soak(duration: float, seed: int) -> None:
    """Run the suite for `duration` seconds."""
    rng = random.Random(seed)
    deadline = time.monotonic() + duration
    ledgers = [Ledger(f"soak/journal-{number}") for number in range(JOURNALS)]
    with tempfile.TemporaryDirectory(prefix="gazette-soak-") as directory:
        files = Path(directory) / "fragments"
        files.mkdir()
        broker = BrokerProcess(
            Path(directory) / "broker", port=free_port(), options=_options(files, rng)
        )
        await broker.start()
        try:
            async with connect(broker.endpoint, retry=RETRY) as client:
                specs = [rolling_journal(ledger.journal, rng) for ledger in ledgers]
                await create_journals(client, *specs)
                killed, stopped = await _rounds(broker, client, ledgers, files, rng, deadline)
                await broker.stop()
                await broker.start()
                for ledger in ledgers:
                    length, count = await check_whole(client, ledger, files)
                    print(
                        f"{ledger.journal}: {len(ledger.acknowledged)} appends, {length} bytes,"
                        f" {count} persisted fragments, intact"
                    )
                print(f"{killed + stopped} rounds: {killed} killed, {stopped} stopped", flush=True)
        finally:
            await broker.kill()


def _options(files: Path, rng: random.Random) -> tuple[str, ...]:
    return f"--fsync={rng.choice(FSYNC)}", f"--file-root={files}"


async def _rounds(
    broker: BrokerProcess,
    client: JournalClient,
    ledgers: list[Ledger],
    files: Path,
    rng: random.Random,
    deadline: float,
) -> tuple[int, int]:
    """Return how often the broker was killed, and how often it was stopped."""
    stopped = 0
    checks = [ContentCheck(ledger) for ledger in ledgers]
    specs = KeySpaceLedger()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(write(client, ledger, f"writer-{number}", rng.randrange(1 << 32)))
            for number, ledger in itertools.product(range(WRITERS), ledgers)
        ]
        tasks.append(group.create_task(change_specs(client, specs, rng.randrange(1 << 32))))
        try:
            for number in itertools.count(1):
                await asyncio.sleep(rng.uniform(0.02, 0.5))
                graceful = rng.random() < GRACEFUL
                stopped += graceful
                await (broker.stop() if graceful else broker.kill())
                broker.options = _options(files, rng)
                await broker.start()
                for ledger, check in zip(ledgers, checks, strict=True):
                    await check_tail(client, ledger, check)
                total = sum(len(ledger.acknowledged) for ledger in ledgers)
                print(
                    f"round {number}: {'stopped' if graceful else 'killed'}, {total} appends and"
                    f" {specs.turn} changes acknowledged",
                    flush=True,
                )
                if time.monotonic() >= deadline:
                    return number - stopped, stopped
        finally:
            for task in tasks:
                task.cancel()
    raise AssertionError("unreachable")
