"""`gazette-aio shards recover` and `prune`."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import connect
from gazette_aio.consumer.api import apply_shards
from gazette_aio.consumer.keyspace.operations import Delete, Put
from gazette_aio.consumer.recoverylog import FSM, encode_hints
from gazette_aio.protocol import consumer as pc
from gazette_aio.testing import consumer_harness, create_journals, journal_spec
from tests.cli.conftest import NO_BROKER_VARIABLES, drawn_on
from tests.cli.test_shards import Forgetful
from tests.consumer.recoverylog.player.logs import LogWriter, create_log, files_of

ONE, TWO = "recovery/shard-one", "recovery/shard-two"


@pytest.fixture
async def broker(tmp_path):
    (tmp_path / "fragments").mkdir()
    async with EmbeddedBroker(
        tmp_path / "broker", file_root=tmp_path / "fragments", fsync="off"
    ) as broker:
        yield broker


@pytest.fixture
async def harness(broker):
    async with connect(broker.endpoint) as client:
        await create_journals(client, journal_spec("words/in"))
        await create_log(client, ONE, TWO, stores=["file:///"])
        async with consumer_harness(Forgetful(), client=client) as harness:
            await harness.start_member()
            yield harness


@pytest.fixture
def run(harness, broker, cli, tmp_path):
    async def run(*args, file_root=True):
        variables = {
            "CONSUMER_ADDRESS": harness.members[0].endpoint,
            "CONSUMER_AUTH_KEYS": "c2VjcmV0",
            "BROKER_ADDRESS": broker.endpoint,
        }
        if file_root:
            variables["BROKER_FILE_ROOT"] = str(tmp_path / "fragments")
        return await cli("shards", *args, env=variables)

    return run


@pytest.fixture
def prune(run):
    async def prune(*args, selector="id=shard-one", **options):
        return await run("prune", "-l", selector, *args, **options)

    return prune


@pytest.fixture
def put(harness, broker):
    """Append parts to a log, each of which becomes a fragment."""

    async def put(log, *parts):
        for part in parts:
            await harness.client.append(log, part)
            await broker.flush(log)
        await broker.refresh(log)

    return put


def spec(name, **fields):
    # Disabled: no primary records to its log, or stores hints.
    fields.setdefault("recovery_log_prefix", "recovery")
    fields.setdefault("hint_prefix", "/hints")
    made = pc.ShardSpec(id=name, hint_backups=1, disable=True, **fields)
    made.max_txn_duration.seconds = 1
    made.sources.add(journal="words/in")
    return made


async def apply(harness, *specs):
    await apply_shards(harness.shards, [pc.ApplyRequest.Change(upsert=each) for each in specs])


async def store(harness, shard, hints):
    """Store hints of a shard as the primary's, and as its backup."""
    value = encode_hints(hints)
    keys = (f"/hints/{shard}.primary", f"/hints/{shard}.backup.0")
    await harness.store.transact([], [Put(key, value) for key in keys])


def history():
    """Return a log of which the first of three parts isn't needed."""
    log = LogWriter(log=ONE)
    parts = [
        log.create("/dead") + log.write("/dead", b"d" * 100),
        log.create("/live") + log.unlink("/dead") + log.write("/live", b"one"),
        log.write("/live", b"two"),
    ]
    return log, parts


@pytest.fixture
async def log(harness, put):
    """The log of shard-one, whose hints are stored."""
    log, parts = history()
    await put(ONE, *parts)
    await apply(harness, spec("shard-one"))
    await store(harness, "shard-one", log.hints)
    return log


def fragments(tmp_path, log=ONE):
    return sorted(path.name.partition("-")[0] for path in (tmp_path / "fragments" / log).iterdir())


async def test_fragments_that_no_hints_need_are_removed(prune, run, log, tmp_path):
    begins = fragments(tmp_path)
    assert len(begins) == 3
    done = await prune("--dry-run", "--json")
    assert (done.code, done.err) == (0, "")
    (found,) = done.json["logs"]
    assert (found["fragments"], found["bytes"]) == (3, log.offset)
    assert (found["pruned_fragments"], found["pruned_bytes"]) == (1, int(begins[1], 16))
    assert fragments(tmp_path) == begins

    done = await prune()
    assert (done.code, done.err) == (0, "")
    header, row = done.text.splitlines()
    assert header.split() == ["LOG", "FRAGMENTS", "BYTES", "PRUNED", "PRUNED", "BYTES", "NOTE"]
    assert row.split() == [ONE, "3", str(log.offset), "1", str(int(begins[1], 16)), "-"]
    assert fragments(tmp_path) == begins[1:]

    done = await run("recover", "--id", "shard-one", "-d", str(tmp_path / "recovered"))
    assert (done.code, done.err) == (0, "")
    assert files_of(tmp_path / "recovered") == log.expected() == {"/live": b"onetwo"}


@pytest.mark.parametrize(("gap", "pruned"), [(2 << 20, 1), (100, 0)])
async def test_a_hole_in_the_middle_of_a_log(harness, prune, run, put, tmp_path, gap, pruned):
    """Short gaps are kept, as recoveries read through them."""
    log = LogWriter(log=ONE)
    parts = [
        log.create("/old") + log.write("/old", b"old"),
        log.create("/dead") + log.write("/dead", b"d" * gap),
        log.unlink("/dead"),
    ]
    number, begin, checksum = log.fsm.next_seq_no, log.offset, log.fsm.next_checksum
    parts[2] += log.write("/old", b"er") + log.create("/live")
    await put(ONE, *parts, log.write("/live", b"content"))
    # As recorders split the segments of a file where there's a large gap.
    hints = log.hints
    segments = hints.live_nodes[0].segments
    segments.add().CopyFrom(segments[0])
    segments[0].last_seq_no, segments[0].last_offset = 2, len(parts[0])
    segments[1].first_seq_no, segments[1].first_offset = number, begin
    segments[1].first_checksum = checksum
    await apply(harness, spec("shard-one"))
    await store(harness, "shard-one", hints)
    done = await prune("--json")
    assert (done.code, done.err) == (0, "")
    assert done.json["logs"][0]["pruned_fragments"] == pruned
    assert len(fragments(tmp_path)) == 4 - pruned
    done = await run("recover", "--id", "shard-one", "-d", str(tmp_path / "recovered"))
    assert (done.code, done.err) == (0, "")
    assert files_of(tmp_path / "recovered") == {"/old": b"older", "/live": b"content"}


async def test_a_fragment_that_is_gone_already(prune, log, tmp_path):
    (path,) = (tmp_path / "fragments" / ONE).glob("0000000000000000-*")
    path.unlink()
    done = await prune("--json")
    assert done.code == 0
    assert done.json["logs"][0]["pruned_fragments"] == 1


async def test_a_file_root_is_needed(prune, log, tmp_path):
    done = await prune(file_root=False)
    assert done.code == 1
    assert "it needs --file-root or $BROKER_FILE_ROOT" in done.err
    assert len(fragments(tmp_path)) == 3
    root = str(tmp_path / "fragments")
    done = await prune("--json", "--file-root", root, file_root=False)
    assert done.json["logs"][0]["pruned_fragments"] == 1


@pytest.mark.parametrize("key", ["primary", "backup.0"])
async def test_missing_hints(harness, prune, log, tmp_path, key):
    await harness.store.transact([], [Delete(f"/hints/shard-one.{key}")])
    done = await prune()
    assert done.code == 1
    assert "nothing was removed, as shard shard-one hasn't stored all its hints" in done.err
    done = await prune("--dry-run")
    assert done.code == 1
    assert "nothing would be removed, as shard shard-one hasn't stored all its hints" in done.err
    done = await prune("--force", "--json")
    assert done.code == 0
    assert "shard shard-one hasn't stored" in done.json["logs"][0]["skipped"]
    assert len(fragments(tmp_path)) == 3


async def test_hints_without_live_files(harness, prune, log, tmp_path):
    value = encode_hints(LogWriter(log=ONE).hints)
    await harness.store.transact([], [Put("/hints/shard-one.backup.0", value)])
    done = await prune()
    assert done.code == 1
    assert "nothing was removed, as shard shard-one has hints without live files" in done.err
    done = await prune("--force", "--json")
    assert done.code == 0
    assert "has hints without live files" in done.json["logs"][0]["skipped"]
    assert len(fragments(tmp_path)) == 3


async def test_hints_that_cannot_be_read(harness, prune, log, tmp_path):
    keys = ("/hints/shard-one.primary", "/hints/shard-one.backup.0")
    await harness.store.transact([], [Put(key, b"invalid") for key in keys])
    done = await prune()
    assert (done.code, "nothing was removed" in done.err) == (1, True)
    assert len(fragments(tmp_path)) == 3


def fork_of(hints, log):
    """Return the hints of a shard that was forked, and has written to its own log."""
    fsm = FSM(hints)
    for node in hints.live_nodes:
        for segment in node.segments:
            segment.log = ONE
    hints.log = log
    last = hints.live_nodes[-1].segments[-1]
    hints.live_nodes[-1].segments.add(
        author=7,
        first_seq_no=last.last_seq_no + 1,
        first_offset=0,
        last_seq_no=last.last_seq_no + 1,
        last_offset=10,
    )
    assert fsm
    return hints


async def test_hints_of_a_fork_count_though_it_is_not_selected(harness, prune, put, tmp_path):
    log, parts = history()
    early = LogWriter(log=ONE)
    early.create("/dead")
    early.write("/dead", b"d" * 100)
    await put(ONE, *parts)
    await apply(harness, spec("shard-one"), spec("shard-two"))
    await store(harness, "shard-one", log.hints)
    await store(harness, "shard-two", fork_of(early.hints, TWO))
    done = await prune("--json")
    assert (done.code, done.err) == (0, "")
    assert done.json["logs"][0]["pruned_fragments"] == 0
    assert len(fragments(tmp_path)) == 3


async def test_a_log_that_incomplete_hints_name_is_skipped(harness, prune, log, tmp_path):
    await apply(harness, spec("shard-two"))
    await store(harness, "shard-two", fork_of(log.hints, TWO))
    await harness.store.transact([], [Delete("/hints/shard-two.backup.0")])
    done = await prune()
    assert done.code == 1
    assert "nothing was removed, as shard shard-two hasn't stored" in done.err
    done = await prune("--force", "--json")
    assert "shard shard-two hasn't stored" in done.json["logs"][0]["skipped"]
    assert len(fragments(tmp_path)) == 3


async def test_another_log_is_pruned_by_force(harness, prune, log, tmp_path):
    await apply(harness, spec("shard-two"))
    done = await prune("--force", "--json", selector="id in (shard-one, shard-two)")
    assert done.code == 0
    one, two = done.json["logs"]
    assert (one["log"], one["pruned_fragments"], one["skipped"]) == (ONE, 1, "")
    assert (two["log"], two["pruned_fragments"]) == (TWO, 0)
    assert "shard shard-two hasn't stored" in two["skipped"]
    assert len(fragments(tmp_path)) == 2


async def test_a_shard_without_a_log_does_not_count(harness, prune, log):
    await apply(harness, spec("shard-two", recovery_log_prefix="", hint_prefix=""))
    done = await prune("--json")
    assert (done.code, done.json["logs"][0]["pruned_fragments"]) == (0, 1)


async def test_shards_that_change_meanwhile(harness, broker, prune, log, tmp_path):
    with broker.control.hold("list_fragments") as hold:
        pruning = asyncio.create_task(prune())
        await hold.held()
        await apply(harness, spec("shard-two"))
        hold.release()
        done = await pruning
    assert done.code == 1
    assert "shards were changed meanwhile: retry" in done.err
    assert len(fragments(tmp_path)) == 3


async def test_an_unhealthy_store(broker, prune, log, tmp_path):
    broker.control.fail_store("file:///", "disk is on fire")
    done = await prune("--json")
    assert done.code == 0
    assert "disk is on fire" in done.json["logs"][0]["skipped"]
    assert len(fragments(tmp_path)) == 3


async def test_a_suspended_log(broker, prune, log, tmp_path):
    with broker.control.keep("list_fragments", status=pb.Status.SUSPENDED):
        done = await prune("--json")
    assert (done.code, done.json["logs"][0]["skipped"]) == (0, "the log is suspended")
    assert len(fragments(tmp_path)) == 3


async def test_a_log_that_does_not_exist(harness, prune, log):
    await apply(harness, spec("shard-two", recovery_log_prefix="missing"))
    hints = log.hints
    hints.log = "missing/shard-two"
    await store(harness, "shard-two", hints)
    done = await prune("--json", selector="id=shard-two")
    assert done.code == 0
    assert "named journal does not exist" in done.json["logs"][0]["skipped"]


async def test_a_fragment_that_cannot_be_removed(prune, log, tmp_path):
    (path,) = (tmp_path / "fragments" / ONE).glob("0000000000000000-*")
    path.unlink()
    path.mkdir()
    done = await prune("--json")
    assert done.code == 1
    assert "1 fragment couldn't be removed" in done.err
    assert len(done.json["logs"][0]["failed"]) == 1


async def test_content_that_is_not_persisted_is_kept(harness, prune, tmp_path):
    log = "recovery/not-stored"
    await create_log(harness.client, log)
    _, (unneeded, *_) = history()
    live = LogWriter(offset=len(unneeded), log=log)
    live.create("/live")
    for content in (unneeded, live.content):
        await harness.client.append(log, content)
    await apply(harness, spec("not-stored"))
    await store(harness, "not-stored", live.hints)
    done = await prune("--json", selector="id=not-stored")
    assert done.code == 0
    (found,) = done.json["logs"]
    assert (found["fragments"], found["pruned_fragments"], found["unpersisted"]) == (2, 0, 1)
    assert "1 not persisted yet" in (await prune(selector="id=not-stored")).text


async def test_recover_prints_what_it_did(run, log, tmp_path):
    directory = tmp_path / "recovered"
    done = await run("recover", "--id=shard-one", f"--dir={directory}")
    assert done.text == f"recovered 1 file in {directory}, as of {ONE} through {log.offset}\n"
    done = await run("recover", "--id=shard-one", f"--dir={directory}")
    assert done.code == 2
    assert (
        "isn't empty: recover files in an empty or missing directory, or with the option "
        in done.err
    )
    done = await run("recover", "--id=shard-one", f"--dir={directory}", "--wipe", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json == {
        "shard": "shard-one",
        "log": ONE,
        "read_through": log.offset,
        "directory": str(directory),
        "files": ["live"],
        "holes": [],
    }


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["recover", "--id=shard-one", "--dir"], b"playing recovery/shard-one"),
        (["prune", "--selector=id=shard-one", "--json", "--file-root"], b"reading hints"),
    ],
)
async def test_progress_on_a_terminal(harness, broker, log, tmp_path, args, text):
    directory = tmp_path / ("fragments" if "prune" in args else "recovered")
    terminal, end = os.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gazette_aio", "shards", *args, str(directory)),
        *(f"--consumer.address={harness.members[0].endpoint}", "--consumer.auth-keys=c2VjcmV0"),
        f"--broker.address={broker.endpoint}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=end,
        env=NO_BROKER_VARIABLES,
    )
    os.close(end)
    assert await process.wait() == 0
    shown = await asyncio.to_thread(drawn_on, terminal)
    assert text in shown
    assert b"100%" in shown


async def test_recover_plays_a_whole_log_without_hints(harness, run, log, tmp_path):
    keys = ("/hints/shard-one.primary", "/hints/shard-one.backup.0")
    await harness.store.transact([], [Delete(key) for key in keys])
    done = await run("recover", "--id=shard-one", "-d", str(tmp_path / "recovered"))
    assert (done.code, done.err) == (0, "")
    assert files_of(tmp_path / "recovered") == log.expected()


@pytest.mark.parametrize(
    ("shard", "reason"),
    [
        ("shard-none", "no shard exists with the given id: shard-none"),
        ("shard-two", "shard shard-two has no recovery log"),
    ],
)
async def test_what_cannot_be_recovered(harness, run, tmp_path, shard, reason):
    await apply(harness, spec("shard-two", recovery_log_prefix="", hint_prefix=""))
    done = await run("recover", "--id", shard, "-d", str(tmp_path / "recovered"))
    assert done.code == 1
    assert reason in done.err
    assert not (tmp_path / "recovered").exists()


@pytest.mark.parametrize("options", [[], ["--accept-loss"]])
async def test_recover_needs_what_hints_name(harness, run, log, tmp_path, options):
    hints = log.hints
    hints.live_nodes[0].segments[0].last_offset = log.offset + 100
    await store(harness, "shard-one", hints)
    done = await run("recover", "--id=shard-one", "-d", str(tmp_path / "recovered"), *options)
    assert done.code == 1
    assert f"max write-head of {ONE} is {log.offset}" in done.err
    assert not (tmp_path / "recovered").exists()


@pytest.mark.parametrize("position", ["middle", "end"])
async def test_recover_accepts_the_loss_of_what_holes_held(
    harness, broker, run, put, tmp_path, position
):
    """They're named, and nothing is recovered unless the loss is accepted."""
    log, parts = history()
    end = log.offset
    lost = log.write("/live", b"three")
    zombie = LogWriter(log.offset, log=ONE, author=666).op() if position == "middle" else b""
    await put(ONE, *parts, lost, *filter(None, [zombie]))
    files = sorted((tmp_path / "fragments" / ONE).iterdir())
    files[3].unlink()
    os.utime(files[-1] if zombie else files[0], (10**9, 10**9))  # Brokers jump to old ones only.
    await broker.refresh(ONE)
    await apply(harness, spec("shard-one"))
    directory = tmp_path / "recovered"
    recover = ("recover", "--id=shard-one", f"--dir={directory}")

    done = await run(*recover)
    assert (done.code, done.out) == (1, b"")
    assert f"{end}-{log.offset}" in done.err or f"from {end} to its end at {log.offset}" in done.err
    assert "possible data loss" in done.err
    assert not directory.exists()

    done = await run(*recover, "--accept-loss")
    named = f"accepted the loss of what a hole at {end}-{log.offset} of {ONE} may have held\n"
    assert (done.code, done.err) == (0, named)
    head = log.offset + len(zombie)
    assert done.text == f"recovered 1 file in {directory}, as of {ONE} through {head}\n"
    assert files_of(directory) == {"/live": b"onetwo"}

    done = await run(*recover, "--accept-loss", "--wipe", "--json")
    assert (done.code, done.err) == (0, named)
    assert done.json["holes"] == [{"log": ONE, "begin": end, "end": log.offset}]
