"""Members of the consumer of delays, on a real Etcd; one of them is killed while it counts."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING

import httpx

from examples.flights.report import Figures
from gazette_aio import load_journal_space
from gazette_aio.client import RetryPolicy
from gazette_aio.consumer.api import apply_shards, connect_shards, list_shards
from gazette_aio.protocol import consumer as pc
from gazette_aio.testing.etcd_process import EtcdProcess, NoEtcdError
from gazette_aio.testing.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from examples.flights.progress import Progress
    from gazette_aio import JournalClient

MEMBERS = 3
LEASE = "5s"
RETRY = RetryPolicy(backoff=lambda _: 0.1)


class MemberFailedError(Exception):
    """A member ended by itself."""


class Members:
    """Processes of the consumer, made by `members()`."""

    def __init__(
        self, endpoints: list[str], processes: list[asyncio.subprocess.Process], progress: Progress
    ) -> None:
        self._endpoints = endpoints
        self._processes = processes
        self._progress = progress

    async def create_shards(self, journals: list[str]) -> None:
        """Create a shard for each journal, and wait until each has a primary."""
        async with connect_shards(self._endpoints[0], retry=RETRY, connect_timeout=60) as client:
            await apply_shards(client, [_change(journal) for journal in journals])
            while not all(map(_is_ready, (await list_shards(client)).shards)):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        self._progress.note(f"consumer: {len(journals)} shards on {MEMBERS} members")

    async def kill_one(self) -> None:
        """Kill a member. Others take its shards over."""
        self._processes[-1].kill()
        await self._processes[-1].wait()
        self._progress.note("a member of the consumer was killed, amid its transactions")

    async def figures(self) -> dict[str, Figures]:
        """Return the figures of all carriers, which have all flights that were published."""
        port = int(self._endpoints[0].rpartition(":")[2]) + 1
        async with httpx.AsyncClient(timeout=120) as client:
            while True:
                response = await client.get(f"http://127.0.0.1:{port}/carriers")
                if response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    break
                await asyncio.sleep(0.2)  # The shards of the killed member aren't assigned anew.
        response.raise_for_status()
        return {
            carrier: Figures(each["flights"], each["known"], each["minutes"])
            for carrier, each in response.json().items()
        }


def _change(journal: str) -> pc.ApplyRequest.Change:
    spec = pc.ShardSpec(
        id=journal.replace("flights/", "delays-"),
        recovery_log_prefix="flights/recovery",
        hint_prefix="/flights/hints",
        hint_backups=2,
        hot_standbys=1,
    )
    spec.max_txn_duration.FromMilliseconds(500)
    spec.sources.add(journal=journal)
    return pc.ApplyRequest.Change(upsert=spec)


def _is_ready(shard: pc.ListResponse.Shard) -> bool:
    primary = shard.route.primary
    return primary >= 0 and shard.status[primary].code == pc.ReplicaStatus.PRIMARY


async def create_recovery_logs(client: JournalClient, journals: list[str]) -> None:
    """Create the recovery logs of the shards."""
    names = [journal.replace("flights/", "flights/recovery/delays-") for journal in journals]
    children = "".join(f"  - name: {name}\n" for name in names)
    space = f"""
name: flights/recovery/
replication: 1
labels: [{{name: content-type, value: application/x-gazette-recoverylog}}]
fragment: {{length: 16777216, compression_codec: SNAPPY, refresh_interval: 1m0s}}
children:
{children}"""
    await client.apply(load_journal_space(space).to_apply_request())


@contextlib.asynccontextmanager
async def members(
    broker: str, directory: Path, progress: Progress
) -> AsyncIterator[Members | None]:
    """Run Etcd and members of the consumer; None if there's no Etcd on this machine."""
    etcd = EtcdProcess(directory / "etcd")
    try:
        await asyncio.to_thread(etcd.start)
    except NoEtcdError as error:
        progress.note(f"the consumer is left out: {error}")
        yield None
        return
    endpoints: list[str] = []
    processes: list[asyncio.subprocess.Process] = []
    try:
        for number in range(MEMBERS):
            port = free_port(2)  # HTTP is served on the next one.
            endpoints.append(f"http://127.0.0.1:{port}")
            settings = {
                "consumer.id": f"member-{number + 1}",
                "consumer.port": port,
                "consumer.host": "127.0.0.1",
                "consumer.bind": "127.0.0.1",
                "consumer.recovery-directory": directory / "shards",
                "broker.address": broker,
                "etcd.address": etcd.endpoint,
                "etcd.lease": LEASE,
                "log.level": "error",
            }
            command = [sys.executable, "-m", "examples.delays", "serve"]
            command += [f"--{name}={value}" for name, value in settings.items()]
            processes.append(await asyncio.create_subprocess_exec(*command))
        yield Members(endpoints, processes, progress)
        if any(process.returncode is not None for process in processes[:-1]):
            raise MemberFailedError("a member of the consumer has ended")
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
        await asyncio.to_thread(etcd.stop)
