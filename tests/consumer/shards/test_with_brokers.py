"""Replicas with transactions, journals and recovery logs of a broker."""

from __future__ import annotations

import itertools
import re

import pytest
from prometheus_client import CollectorRegistry

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import RetryPolicy, connect
from gazette_aio.consumer.keyspace.embedded import EmbeddedStore
from gazette_aio.consumer.keyspace.operations import Put
from gazette_aio.consumer.recoverylog import encode_hints
from gazette_aio.consumer.service.metrics import ConsumerMetrics
from gazette_aio.consumer.shards import replica
from gazette_aio.consumer.shards.hints import fetch_stored_hints
from gazette_aio.consumer.transactions.primary import PrimaryLoop
from gazette_aio.message import Publisher, json_adapter
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol.recoverylog import FSMHints
from tests.consumer.shards.group import REMOTE, A, Application, Group, shard_spec
from tests.consumer.transactions.world import NDJSON, heads, journal_change, serve
from tests.waiting import eventually

LOG = "recovery/logs/shard-A"
LOG_TYPE = "application/x-gazette-recoverylog"


@pytest.fixture
async def broker(tmp_path):
    """A client of a broker that has the sources and a recovery log."""
    async with serve(tmp_path) as client:
        await client.apply([journal_change(LOG, LOG_TYPE)])
        yield client


def member(client, **options):
    options.setdefault("primary_loop", PrimaryLoop)
    return Group(client, **options)


def logged(**fields):
    return shard_spec(
        recovery_log_prefix="recovery/logs", hint_prefix="/hints", hint_backups=2, **fields
    )


async def publish(client, *values, journal="source/A", publisher=None):
    publisher = publisher or Publisher(client.appends, json_adapter())
    for value in values:
        await publisher.publish_committed(lambda _: (journal, NDJSON), {"v": value})
    return await heads(client, journal)


@pytest.mark.parametrize("code", ["CANCELLED", "UNAVAILABLE", "RESOURCE_EXHAUSTED"])
async def test_listings_that_fail_for_a_while_fail_no_shard(tmp_path, code):
    failures = itertools.count()
    retry = RetryPolicy(backoff=lambda _: 0.0)
    async with EmbeddedBroker(tmp_path / "broker") as broker:
        async with connect(broker.endpoint, retry=retry) as client:
            sources = ("source/A", "source/B")
            await client.apply([journal_change(LOG, LOG_TYPE), *map(journal_change, sources)])
            published = await publish(client, 1)
            with broker.control.keep("list", fail=code, where=lambda _: next(failures) % 20 < 19):
                async with member(client) as group:
                    await group.create(logged())
                    await group.assign()
                    resolution = await group.resolve(A, read_through=published)
                    assert resolution.status == pc.Status.OK
    assert next(failures) >= 40


async def test_a_shard_moves_between_members_with_its_state(broker):
    """Also a transaction that was pending when the first member lost the shard."""
    application = Application()
    pending = Publisher(broker.appends, json_adapter())
    async with EmbeddedStore() as store:
        async with (
            member(broker, store=store, application=application) as first,
            member(
                broker, store=store, application=application, local=REMOTE, remote=None
            ) as other,
        ):
            await pending.publish_uncommitted(lambda _: ("source/A", NDJSON), {"v": "pending"})
            await first.create(shard_spec(disable_wait_for_ack=True))
            await first.assign()
            for value in ("one", "two"):
                through = await publish(broker, value)
                async with first.resolver.resolve(A, read_through=through) as resolution:
                    assert resolution.status == 0
            await other.key_space.wait_for_revision(first.key_space.header.revision)
            await other.assign(slot=1)
            await other.status("STANDBY", slot=1)
            await first.unassign()
            await other.key_space.wait_for_revision(first.key_space.header.revision)
            await other.promote()
            await other.status("PRIMARY")
            for journal, content in pending.build_ack_intents():
                await broker.append(journal, content)
            through = await heads(broker, "source/A")
            async with other.resolver.resolve(A, read_through=through) as resolution:
                assert resolution.store.state == {"source/A": ["one", "two", "pending"]}
        assert [each.is_destroyed for each in application.stores] == [True, True]
    assert application.disks[A].state == {"source/A": ["one", "two", "pending"]}


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            shard_spec(A, "missing/source"),
            (
                "sources: JournalNotFoundError: fetching journal spec: named journal does not "
                "exist (missing/source): JOURNAL_NOT_FOUND (journal missing/source)"
            ),
        ),
        (
            shard_spec(A, LOG),
            (
                f"source {LOG}: UnrecognizedContentTypeError: unrecognized content-type "
                f"(application/x-gazette-recoverylog) of journal {LOG}: framings are registered of"
            ),
        ),
        (
            shard_spec(recovery_log_prefix="missing", hint_prefix="/hints"),
            (
                "recovery: specification of missing/shard-A: "
                "RecoveryError: named journal does not exist (missing/shard-A)"
            ),
        ),
        (
            shard_spec(recovery_log_prefix="other", hint_prefix="/hints"),
            (
                "recovery: RecoveryError: expected label content-type value "
                "application/x-gazette-recoverylog (got application/x-ndjson)"
            ),
        ),
    ],
)
async def test_journals_that_cannot_be_read(broker, spec, text):
    await broker.apply([journal_change("other/shard-A")])
    async with member(broker) as group:
        await group.create(spec)
        await group.assign()
        (error,) = (await group.status("FAILED")).errors
        assert error.startswith(text)


async def stored_hints(group):
    stored = await fetch_stored_hints(group.store, logged())
    return list(stored.hints)


async def test_recovery_of_an_empty_log(broker, tmp_path):
    async with member(broker, recovery_directory=tmp_path / "files") as group:
        await group.create(logged())
        await group.assign(slot=1)
        await group.status("STANDBY", slot=1)
        await group.promote()
        await group.status("PRIMARY")
        replica = group.shards.replicas[A]
        assert replica.is_ready
        assert replica.recovered_hints is not None
        assert await stored_hints(group) == [None, FSMHints(log=LOG), None]
        (directory,) = (tmp_path / "files").iterdir()
        assert directory.name.startswith("shard-A-")
    assert not list((tmp_path / "files").iterdir())


@pytest.mark.parametrize("letter", ["x", "ü", "語"])
async def test_a_long_shard_id(broker, tmp_path, letter: str):
    """Names of directories are shorter, in bytes, than IDs may be."""
    shard = "shard-" + letter * (400 // len(letter.encode()))
    await broker.apply([journal_change(f"recovery/logs/{shard}", LOG_TYPE)])
    async with member(broker, recovery_directory=tmp_path / "files") as group:
        await group.create(logged(shard=shard))
        await group.assign(shard)
        await group.status("PRIMARY", shard)
        (directory,) = (tmp_path / "files").iterdir()
        assert directory.name.startswith(f"shard-{letter * 3}")


@pytest.mark.parametrize("reason", ["bytes", "exit", "time"])
async def test_hints_are_recorded(broker, reason, monkeypatch):
    class Recording(Application):
        async def new_store(self, shard, recorder):
            self.recorder = recorder
            return await super().new_store(shard, recorder)

        def write(self):
            path = f"{self.recorder.directory}/state"
            self.recorder.record_create(path)
            self.recorder.record_write_at(self.recorder.fnode_of(path), b"content" * 100, 0)

    application = Recording()
    options = {"hints_bytes": 500} if reason == "bytes" else {}
    if reason == "time":
        monkeypatch.setattr(replica, "FIRST_HINTS_SECONDS", 0)
        monkeypatch.setattr(replica, "HINTS_SECONDS", 0.01)
    metrics = ConsumerMetrics(CollectorRegistry())
    async with member(broker, application=application, metrics=metrics, **options) as group:
        await group.create(logged())
        await group.assign()
        await group.status("PRIMARY")
        for files in (1, 2):
            application.write()
            if reason == "exit":
                group.shards.store_hints()
            else:
                await application.recorder.barrier()

            async def are_stored(files=files):
                hints = (await stored_hints(group))[0]
                return hints is not None and hints.live_nodes[-1].fnode > files

            await eventually(are_stored)
        await group.unassign()
        await group.assign()
        await group.status("PRIMARY")
        # The first file isn't played.
        recovered = "gazette_recoverylog_recovered_bytes_total"
        assert metrics.registry.get_sample_value(recovered) == len(b"content" * 100)


SEGMENT = {"author": 7, "first_seq_no": 5, "first_offset": 100, "last_seq_no": 5}
BEYOND = encode_hints(FSMHints(log=LOG, live_nodes=[{"fnode": 5, "segments": [SEGMENT]}]))


@pytest.mark.parametrize(
    ("slot", "value", "text"),
    [
        (0, BEYOND, f"playing log {LOG}: |RecoveryError: the recovery log can't be played$"),
        (1, BEYOND, f"playing log {LOG}: "),
        (0, b"garbage", r"fetching hints: HintsError: hints\.Unmarshal: "),
    ],
)
async def test_hints_that_cant_be_played(broker, slot, value, text):
    async with member(broker) as group:
        await group.write(Put("/hints/shard-A.primary", value), wait=False)
        await group.create(logged())
        await group.assign(slot=slot)
        status = await group.status("FAILED", slot=slot)
        assert any(re.match(f"recovery: ({text})", each) for each in status.errors)


async def test_hints_of_a_users_function(broker):
    """A shard may begin from the log of another one, and then records into its own."""
    responses = [pc.GetHintsResponse(status=pc.Status.SHARD_NOT_FOUND), pc.GetHintsResponse()]
    responses[1].primary_hints.hints.log = "recovery/logs/other"
    asked = []

    async def get_hints(claims, service, request):
        asked.append(request.shard)
        return responses[len(asked) - 1]

    await broker.apply([journal_change("recovery/logs/other", LOG_TYPE)])
    async with member(broker, get_hints=get_hints) as group:
        await group.create(logged())
        await group.assign()
        assert list((await group.status("FAILED")).errors) == [
            "recovery: fetching hints: RecoveryError: SHARD_NOT_FOUND"
        ]
        await group.unassign()
        await group.assign()
        await group.status("PRIMARY")
        assert asked == [A, A]
        # These hints aren't the shard's own, and are no backup.
        stored = await fetch_stored_hints(group.store, logged())
        assert list(stored.entries) == [None, None, None]
