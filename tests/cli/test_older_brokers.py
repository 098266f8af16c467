"""Commands at brokers that are older than this library, and lack some of its RPCs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import connect
from gazette_aio.consumer.api import apply_shards
from gazette_aio.consumer.keyspace.operations import Put
from gazette_aio.consumer.recoverylog import encode_hints
from gazette_aio.protocol import consumer as pc
from gazette_aio.testing import consumer_harness, create_journals, journal_spec
from tests.cli.test_shards import Forgetful
from tests.consumer.recoverylog.player.logs import LogWriter, create_log

LOG = "recovery/shard-one"


async def test_pruning_without_checks_of_stores(cli: Any, tmp_path: Path) -> None:
    log = LogWriter(log=LOG)
    async with (
        EmbeddedBroker(tmp_path / "broker", file_root=tmp_path, fsync="off") as broker,
        connect(broker.endpoint) as client,
        consumer_harness(Forgetful(), client=client) as harness,
    ):
        await create_journals(client, journal_spec("words/in"))
        await create_log(client, LOG, stores=["file:///"])
        for part in (log.create("/dead"), log.create("/live") + log.unlink("/dead")):
            await client.append(LOG, part)
            await broker.flush(LOG)
        await broker.refresh(LOG)
        await harness.start_member()
        # Disabled: no primary records to its log, or stores hints.
        shard = pc.ShardSpec(
            id="shard-one", recovery_log_prefix="recovery", hint_prefix="/hints", disable=True
        )
        shard.max_txn_duration.seconds = 1
        shard.sources.add(journal="words/in")
        await apply_shards(harness.shards, [pc.ApplyRequest.Change(upsert=shard)])
        await harness.store.transact([], [Put("/hints/shard-one.primary", encode_hints(log.hints))])
        env = {
            "CONSUMER_ADDRESS": harness.members[0].endpoint,
            "CONSUMER_AUTH_KEYS": "c2VjcmV0",
            "BROKER_ADDRESS": broker.endpoint,
            "BROKER_FILE_ROOT": str(tmp_path),
        }
        with broker.control.keep("fragment_store_health", fail="UNIMPLEMENTED"):
            done = await cli("shards", "prune", "-l", "", "--dry-run", "--json", env=env)
    assert (done.code, done.err) == (0, "")
    (pruned,) = done.json["logs"]
    assert (pruned["skipped"], pruned["pruned_fragments"]) == ("", 1)
