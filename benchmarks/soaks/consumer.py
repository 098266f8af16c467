"""Kill, stop and pause members, Etcd and the broker under a consumer: each message counts once.

Connections to the database are cut, too. Etcd is killed only if it's newer than that of the wheel.

Three members share shards whose state is in files that recovery logs record, or in PostgreSQL.
Messages are published in transactions all the time. Invariants:
    - the messages of a key are consumed in order, none twice and none left out;
    - the same holds for what the members publish, as read-committed readers see it;
    - no shard fails, but by the fault of a moment;
    - all that was published is consumed at the end, by shards whose primaries are back within
      three time-to-lives of leases.

Members that end, as they do when they lose their lease, are started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from benchmarks.soaks.consumer_member import LINES, OUT, Number
from benchmarks.soaks.consumer_sql_member import create_tables, cut_connections, first_broken
from benchmarks.soaks.invariant import BrokenInvariantError, require
from benchmarks.soaks.postgres import postgres_server
from gazette_aio import Publisher, ReadCommittedIter, connect, json_adapter
from gazette_aio.client import RetryPolicy
from gazette_aio.client.reads.head import head_of
from gazette_aio.consumer.api import (
    ShardClient,
    apply_shards,
    connect_shards,
    list_shards,
    stat_shard,
    unassign_shards,
)
from gazette_aio.protocol import consumer as pc
from gazette_aio.testing import BrokerProcess, create_journals, journal_spec
from gazette_aio.testing.etcd_process import EtcdProcess, survives_kills
from gazette_aio.testing.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_aio import JournalClient

MEMBERS = 3
KEYS = 20
"""Keys of each source."""
LEASE_SECONDS = 10
"""Half of the default. Shorter ones end if members only wait for a core of a small machine."""
RECOVERED_SECONDS = 3 * LEASE_SECONDS
EXIT_TIMEOUT_SECONDS = 10
EXIT_SECONDS = 2 * EXIT_TIMEOUT_SECONDS
"""Time in which a member ends that was asked to: it hands its shards over, and closes them."""
END_SECONDS = 120.0
STORES = {"json": 50, "rocksdb": 24, "sql": 24, "sqlite": 50}
"""Shards by store. Each shard of three members may have a connection to the database."""
RETRY = RetryPolicy(backoff=lambda _: 0.05)


class Member:
    """A process of the consumer, started again when it ends."""

    def __init__(
        self, number: int, broker: str, etcd: str, directory: Path, store: str, database: str
    ) -> None:
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._log = directory / f"member-{number}.log"
        module = f"benchmarks.soaks.consumer_{'sql_' if store == 'sql' else ''}member"
        self._command = [
            sys.executable, "-m", module, "serve",
            f"--consumer.id=member-{number}", f"--consumer.port={self.port}",
            "--consumer.host=127.0.0.1", "--consumer.bind=127.0.0.1",
            "--consumer.limit=100", f"--consumer.exit-timeout={EXIT_TIMEOUT_SECONDS}s",
            f"--consumer.recovery-directory={directory / 'shards'}",
            f"--broker.address={broker}", f"--etcd.address={etcd}",
            f"--etcd.lease={LEASE_SECONDS}s", "--etcd.prefix=/consumers/soak",
            "--log.level=info",
        ]  # fmt: skip
        self._environment = {**os.environ, "SOAK_STORE": store, "SOAK_DATABASE": database}
        self._process: asyncio.subprocess.Process | None = None
        self._is_over = False
        self.is_exiting = False
        """Whether the process was asked to end, and hands its shards over."""

    async def run(self) -> None:
        """Run the process again and again, until `end()`."""
        while not self._is_over:
            with self._log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, stdout=log, stderr=log, env=self._environment
                )
            await self._process.wait()
            self.is_exiting = False
            await asyncio.sleep(0.2)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
            self.is_exiting |= number == signal.SIGTERM

    def end(self) -> None:
        """Kill the process, and start it no more."""
        self._is_over = True
        self.send(signal.SIGKILL)

    def check_log(self) -> None:
        """Require that no message was consumed out of order, as far as members can tell."""
        text = self._log.read_text(errors="replace")
        at = text.find("BROKEN")
        require(at < 0, text[at : at + 200])


def shard_specs(count: int, store: str) -> list[pc.ShardSpec]:
    """Return the specs of shards, each of one source, and every other with a hot standby."""
    log = {"recovery_log_prefix": "soak/recovery", "hint_prefix": "/soak/hints", "hint_backups": 2}
    specs: list[pc.ShardSpec] = []
    for number in range(count):
        spec = pc.ShardSpec(
            id=f"shard-{number:03}",
            hot_standbys=number % 2,
            **({} if store == "sql" else log),
        )
        spec.max_txn_duration.FromMilliseconds(200)
        spec.sources.add(journal=source_of(number))
        specs.append(spec)
    return specs


def source_of(number: int) -> str:
    """Return the journal of a shard's messages."""
    return f"soak/in/part-{number:03}"


class Input:
    """What was published, by key, and its publisher."""

    def __init__(self, sources: int) -> None:
        self.numbers = {
            f"{source}/{key}": 0 for source, key in itertools.product(range(sources), range(KEYS))
        }

    async def publish(
        self, client: JournalClient, rng: random.Random, is_over: asyncio.Event
    ) -> None:
        """Publish transactions until told to end."""
        publisher = Publisher(client.appends, json_adapter(Number))
        keys = list(self.numbers)
        while not is_over.is_set():
            async with publisher.transaction():
                for key in rng.choices(keys, k=rng.randrange(1, 50)):
                    self.numbers[key] += 1
                    await publisher.publish_uncommitted(_target, Number(key, self.numbers[key]))
            await asyncio.sleep(rng.uniform(0, 0.05))


def _target(message: Number) -> tuple[str, str]:
    return source_of(int(message.key.partition("/")[0])), LINES


async def check_output(client: JournalClient, expected: dict[str, int]) -> int:
    """Require that each number was published on once, in the order of its key."""
    seen = dict.fromkeys(expected, 0)
    async with ReadCommittedIter(
        OUT, json_adapter(Number), client=client, skip_acks=True
    ) as envelopes:
        async for envelope in envelopes:
            message = envelope.message
            last = seen[message.key]
            require(
                message.number == last + 1,
                f"{OUT}: {message.number} of key {message.key} follows {last}",
            )
            seen[message.key] = message.number
    require(seen == expected, f"{OUT}: some numbers are missing")
    return sum(seen.values())


class Faults:
    """Faults of members, Etcd, the broker, and connections to the database, if there's one."""

    def __init__(
        self,
        members: list[Member],
        etcd: EtcdProcess,
        broker: BrokerProcess,
        database: str,
        rng: random.Random,
    ) -> None:
        self._members = members
        self._etcd = etcd
        self._broker = broker
        self._database = database
        self._rng = rng
        self._kills_etcd = survives_kills()

    async def one(self) -> str:
        """Make one fault, wait until it's over, and return what it was."""
        kinds: list[Callable[[], Awaitable[str]]] = [
            self._kill, self._kill, self._terminate, self._pause, self._stop_etcd,
            self._pause_etcd, self._restart_broker,
        ]  # fmt: skip
        if self._kills_etcd:
            kinds.append(self._kill_etcd)
        if self._database:
            kinds += [self._cut_connections] * 2
        return await self._rng.choice(kinds)()

    async def check(self) -> None:
        """Require that no message was consumed out of order."""
        for member in self._members:
            member.check_log()
        if self._database:
            broken = await first_broken(self._database)
            require(not broken, broken)

    async def _kill(self) -> str:
        member = self._rng.choice(self._members)
        member.send(signal.SIGKILL)
        return "killed a member"

    async def _terminate(self) -> str:
        member = self._rng.choice(self._members)
        member.send(signal.SIGTERM)
        return "terminated a member"

    async def _pause(self) -> str:
        member = self._rng.choice(self._members)
        seconds = self._rng.uniform(0.1, 2.5 * LEASE_SECONDS)
        member.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            member.send(signal.SIGCONT)
        return f"paused a member for {seconds:.1f} s"

    async def _cut_connections(self) -> str:
        share = self._rng.choice((0.1, 0.5, 1.0))
        count = await cut_connections(self._database, share)
        return f"cut {count} connections to the database"

    async def _stop_etcd(self) -> str:
        await self._restart_etcd(self._etcd.stop)
        return "restarted Etcd"

    async def _kill_etcd(self) -> str:
        await self._restart_etcd(self._etcd.kill)
        return "killed Etcd, and started it again"

    async def _restart_etcd(self, end: Callable[[], None]) -> None:
        await asyncio.to_thread(end)
        await asyncio.sleep(self._rng.uniform(0, LEASE_SECONDS))
        await asyncio.to_thread(self._etcd.start)

    async def _pause_etcd(self) -> str:
        seconds = self._rng.uniform(0.1, 1.5 * LEASE_SECONDS)
        self._etcd.pause()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._etcd.resume()
        return f"paused Etcd for {seconds:.1f} s"

    async def _restart_broker(self) -> str:
        if self._rng.random() < 0.5:
            await self._broker.kill()
            how = "killed"
        else:
            await self._broker.stop()
            how = "stopped"
        await self._broker.start()
        return f"{how} the broker, and started it again"


async def wait_for_primaries(members: list[Member], count: int, seconds: float) -> float:
    """Wait until each shard has a primary that answers, and return after how long.

    A member that exits has its own time for that, of which a fault in the meantime may take all.
    """
    began = time.monotonic()
    end, latest = began + seconds, began + EXIT_SECONDS + seconds
    reason = ""
    while time.monotonic() < end:
        if any(member.is_exiting for member in members):
            end = min(time.monotonic() + seconds, latest)
        for member in members:
            try:
                async with connect_shards(
                    member.endpoint, timeout=2.0, connect_timeout=0.5, retry=RETRY
                ) as client:
                    listing = await list_shards(client)
                    await _release_failed(client, listing)
                    if not (reason := _missing(listing, count)):
                        # A member that was killed is listed until its lease ends.
                        await asyncio.gather(
                            *(stat_shard(client, shard.spec.id) for shard in listing.shards)
                        )
            except (pb.GazetteError, OSError) as error:
                reason = str(error)
            if not reason:
                return time.monotonic() - began
        await asyncio.sleep(0.1)
    raise BrokenInvariantError(f"after {time.monotonic() - began:.0f} s: {reason}")


async def _release_failed(client: ShardClient, listing: pc.ListResponse) -> None:
    """Have shards assigned anew whose connections to the database were cut, as an operator does."""
    failed = [
        shard.spec.id
        for shard in listing.shards
        for status in shard.status
        if status.code == pc.ReplicaStatus.FAILED and _is_of_the_database(status)
    ]
    if failed:
        await unassign_shards(client, failed, only_failed=True)


def _is_of_the_database(status: pc.ReplicaStatus) -> bool:
    return any(
        text in error for error in status.errors for text in ("server closed", "terminating")
    )


def _missing(listing: pc.ListResponse, count: int) -> str:
    if len(listing.shards) != count:
        return f"{len(listing.shards)} of {count} shards are listed"
    for shard in listing.shards:
        primary = shard.route.primary
        if primary < 0 or shard.status[primary].code != pc.ReplicaStatus.PRIMARY:
            status = [str(status).replace("\n", " ") for status in shard.status]
            return f"{shard.spec.id} has no primary: {status}"
    return ""


async def consume_all(
    members: list[Member], client: JournalClient, specs: list[pc.ShardSpec], seconds: float
) -> None:
    """Wait until each shard has consumed all of its source."""
    deadline = time.monotonic() + seconds
    for spec in specs:
        journal = spec.sources[0].journal
        request = pc.StatRequest(
            shard=spec.id, read_through={journal: await head_of(client, journal)}
        )
        await _stat(members, request, deadline)


async def _stat(members: list[Member], request: pc.StatRequest, deadline: float) -> None:
    failure = "no member answers"
    for member in itertools.cycle(members):
        left = deadline - time.monotonic()
        require(left > 0, f"{request.shard} hasn't consumed all: {failure}")
        try:
            async with connect_shards(
                member.endpoint, timeout=min(left, 5.0), connect_timeout=1.0
            ) as client:
                await _release_failed(client, await list_shards(client))
                await stat_shard(client, request)
        except pb.GazetteError as error:
            failure = str(error)
            await asyncio.sleep(0.1)
        else:
            return


async def create_shards(members: list[Member], specs: list[pc.ShardSpec]) -> None:
    """Create the shards, once a member answers."""
    changes = [pc.ApplyRequest.Change(upsert=spec) for spec in specs]
    async with connect_shards(members[0].endpoint, retry=RETRY) as client:
        await _answers(client)
        await apply_shards(client, changes, batch_size=50)


async def _answers(client: ShardClient) -> None:
    async with asyncio.timeout(END_SECONDS):
        while True:
            with contextlib.suppress(pb.TransportError):
                await list_shards(client)
                return
            await asyncio.sleep(0.1)


async def soak(
    duration: float,
    seed: int,
    *,
    store: str = "json",
    shards: int | None = None,
    recovered_seconds: float = RECOVERED_SECONDS,
) -> None:
    """Run the suite for `duration` seconds.

    Args:
        duration: Seconds.
        seed: Seed of the faults.
        store: Where the state is, one of `STORES`.
        shards: Number of shards; None for that of the store.
        recovered_seconds: Time within which each shard has a primary after a fault.
    """
    shards = STORES[store] if shards is None else shards
    rng = random.Random(seed)
    deadline = time.monotonic() + duration
    print(f"{shards} shards on {store}, {MEMBERS} members, leases of {LEASE_SECONDS} s", flush=True)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gazette-soak-")))
        database = ""
        if store == "sql":
            database = stack.enter_context(postgres_server())
            await create_tables(database)
        broker = BrokerProcess(directory / "broker", port=free_port())
        etcd = EtcdProcess(directory / "etcd")
        await broker.start()
        try:
            await asyncio.to_thread(etcd.start)
            members = [
                Member(number, broker.endpoint, etcd.endpoint, directory, store, database)
                for number in range(MEMBERS)
            ]
            async with connect(broker.endpoint, retry=RETRY) as client:
                await _soak(
                    members,
                    Faults(members, etcd, broker, database, rng),
                    client,
                    shard_specs(shards, store),
                    rng,
                    deadline,
                    recovered_seconds,
                )
        finally:
            await asyncio.to_thread(etcd.stop)
            await broker.kill()


async def _soak(
    members: list[Member],
    faults: Faults,
    client: JournalClient,
    specs: list[pc.ShardSpec],
    rng: random.Random,
    deadline: float,
    recovered_seconds: float,
) -> None:
    shards = len(specs)
    lines, log = {"content-type": LINES}, {"content-type": "application/x-gazette-recoverylog"}
    await create_journals(
        client,
        journal_spec(OUT, labels=lines),
        *(journal_spec(source_of(number), labels=lines) for number in range(shards)),
        *(journal_spec(f"soak/recovery/{spec.id}", labels=log) for spec in specs),
    )
    given, is_over = Input(shards), asyncio.Event()
    running = [asyncio.create_task(member.run()) for member in members]
    try:
        await create_shards(members, specs)
        await wait_for_primaries(members, shards, END_SECONDS)
        publishing = asyncio.create_task(given.publish(client, rng, is_over))
        try:
            await _rounds(faults, members, given, shards, rng, deadline, recovered_seconds)
        finally:
            is_over.set()
            await publishing
        await consume_all(members, client, specs, END_SECONDS)
    finally:
        for member in members:
            member.end()
        await asyncio.wait(running)
        await faults.check()
    total = await check_output(client, given.numbers)
    print(f"{total} messages were consumed and published exactly once", flush=True)


async def _rounds(
    faults: Faults,
    members: list[Member],
    given: Input,
    shards: int,
    rng: random.Random,
    deadline: float,
    recovered_seconds: float,
) -> None:
    for number in itertools.count(1):
        await asyncio.sleep(rng.uniform(0.1, 3))
        what = await faults.one()
        seconds = await wait_for_primaries(members, shards, recovered_seconds)
        await faults.check()
        print(
            f"round {number}: {what}; primaries are back after {seconds:.1f} s, "
            f"{sum(given.numbers.values())} messages published",
            flush=True,
        )
        if time.monotonic() >= deadline:
            return
