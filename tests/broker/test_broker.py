"""Life of a broker, and what's beyond single requests: fragments, order, scale."""

# ruff: noqa: PTH115, PTH208 - Directories are looked at by name.

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.broker.host.files import FileOps
from gazette_aio.broker.host.options import FsyncMode
from gazette_aio.broker.service.read import ContentChunk
from tests.broker.caller import Caller, calling, journal_spec
from tests.broker.served import serve_read
from tests.waiting import eventually

# Life


async def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path, fsync="off") as broker:
        suffix = broker.process_id.suffix
        async with calling(broker.endpoint) as caller:
            response = await caller.create(journal_spec())
            await caller.commit(b"hello ", union_registers=pb.label_set("aa", "1"))
            await caller.commit(b"world")
    async with EmbeddedBroker(tmp_path, fsync="off") as broker:
        assert broker.process_id.suffix == suffix
        async with calling(broker.endpoint) as caller:
            again = await caller.apply_call(pb.ApplyRequest())
            assert again.header.etcd.cluster_id == response.header.etcd.cluster_id
            assert again.header.etcd.revision == response.header.etcd.revision
            assert again.header.etcd.raft_term == response.header.etcd.raft_term + 1
            assert await caller.read() == b"hello world"
            mismatch = pb.LabelSelector(include=pb.label_set("aa", "2"))
            refused = await caller.append(b"x", check_registers=mismatch)
            assert refused.status == pb.Status.REGISTER_MISMATCH
            assert refused.registers == pb.label_set("aa", "1")
            assert await caller.commit(b"!") == 11


async def test_a_broker_can_be_started_again() -> None:
    broker = EmbeddedBroker(fsync="off")
    assert "stopped" in repr(broker)
    with pytest.raises(pb.ConfigurationError, match="async with"):
        _ = broker.endpoint
    for _ in range(2):
        await broker.start()
        with pytest.raises(RuntimeError, match="running already"):
            await broker.start()
        assert broker.endpoint.startswith("http://127.0.0.1:")
        await broker.stop()
        await broker.stop()
    with pytest.raises(pb.ConfigurationError, match="isn't running"):
        broker.stats()


async def test_a_temporary_directory_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with EmbeddedBroker(fsync="off"):
        assert len(os.listdir(tmp_path)) == 1
    assert os.listdir(tmp_path) == []


async def test_a_directory_has_one_broker(broker: EmbeddedBroker) -> None:
    other = EmbeddedBroker(broker.options.data_dir, fsync="off")
    with pytest.raises(pb.ConfigurationError, match="is in use by another broker"):
        await other.start()


async def test_a_port_which_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        other = EmbeddedBroker(tmp_path, port=port, fsync="off")
        with pytest.raises(pb.ConfigurationError, match=f"127.0.0.1:{port}"):
            await other.start()
    async with EmbeddedBroker(tmp_path, fsync="off"):
        pass  # The directory was unlocked.


def test_options_are_checked() -> None:
    wrong: dict[str, Any]
    for wrong, text in (
        ({"fsync": "sometimes"}, "fsync must be"),
        ({"colour": "blue"}, r"EmbeddedBroker\(\) has no option colour"),
        ({"http_prot": 0}, r"has no option http_prot: did you mean 'http_port'\?"),
        ({"port": "8080"}, r"port must be int \(not '8080'\)"),
        ({"http_port": "8080"}, r"http_port must be int \| None \(not '8080'\)"),
        ({"max_replication": None}, r"max_replication must be int \(not None\)"),
        ({"grpc_extras": "no"}, r"grpc_extras must be bool \(not 'no'\)"),
    ):
        with pytest.raises(pb.ConfigurationError, match=text):
            EmbeddedBroker(**wrong)


async def test_only_the_first_of_two_starts_begins(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path, fsync="off")
    first, second = await asyncio.gather(broker.start(), broker.start(), return_exceptions=True)
    assert first is None
    assert isinstance(second, pb.UsageError)
    assert broker.process_id.suffix
    await broker.stop()


async def test_a_leaked_broker_warns(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path, fsync="off")
    await broker.start()
    # Somebody has to end what was leaked.
    core, server, gateway = broker.core, broker._server, broker._gateway  # pyright: ignore[reportPrivateUsage]
    with pytest.warns(ResourceWarning, match="was not stopped"):  # noqa: PT031
        del broker
        gc.collect()
    assert core is not None
    assert server is not None
    assert gateway is not None
    await core.stop_serving()
    await server.stop(0)
    await gateway.stop(0)
    await core.aclose()


async def test_stopping_ends_blocked_streams_at_once(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path, fsync="off")
    await broker.start()
    async with calling(broker.endpoint) as caller:
        await caller.create(journal_spec())
        await caller.commit(b"hello")
        read = caller.read_call(pb.ReadRequest(journal="test/journal", block=True))
        watch = caller.list_call(pb.ListRequest(watch=True))
        wait = caller.read_call(pb.ReadRequest(journal="test/journal", min_etcd_revision=1000))
        append = caller.append_call()
        await append.write(pb.AppendRequest(journal="test/journal"))
        for call in (read, read, watch, watch):
            assert await call.read() is not grpc.aio.EOF
        async with asyncio.timeout(30):
            await broker.stop(0.2)
        assert await read.read() is grpc.aio.EOF
        assert await watch.read() is grpc.aio.EOF
        assert await read.code() is await watch.code() is grpc.StatusCode.OK
        with pytest.raises(grpc.aio.AioRpcError):
            await wait.read()
        with pytest.raises(grpc.aio.AioRpcError):
            await append


async def test_a_process_says_when_it_is_ready_and_drains(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys; from pathlib import Path; from gazette_aio.broker import *;"
        "asyncio.run(serve(BrokerOptions(data_dir=Path(sys.argv[1]), suffix='my-broker')))"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(tmp_path),
        cwd=Path(__file__).parents[2], stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        ready = json.loads(await process.stdout.readline())
        assert ready["pid"] == process.pid
        assert ready["process_id"] == {"zone": "local", "suffix": "my-broker"}
        async with calling(ready["endpoint"]) as caller:
            await caller.create(journal_spec(stores=["file:///"]))
            await caller.commit(b"content")
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(30):
                assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    files = [p for p in (tmp_path / "fragments").rglob("*.raw") if p.is_file()]
    assert [path.read_bytes() for path in files] == [b"content"]


# Fragments


@pytest.mark.parametrize("codec", ["NONE", "GZIP", "ZSTANDARD", "SNAPPY"])
async def test_fragments_are_persisted_and_read(
    broker: EmbeddedBroker, caller: Caller, codec: str
) -> None:
    spec = journal_spec(stores=["file:///"], compression_codec=pb.CompressionCodec.Value(codec))
    await caller.create(spec)
    content = os.urandom(300_000) + b"compressible " * 200_000
    await caller.commit(content)
    await broker.flush("test/journal")
    [fragment] = await caller.fragments()
    assert (fragment.begin, fragment.end) == (0, len(content))
    assert fragment.backing_store == "file:///"
    assert pb.sum_to_digest(fragment.sum) == hashlib.sha1(content).digest()
    directory = broker.options.data_dir
    assert directory is not None
    path = directory / "fragments" / pb.content_path(fragment)
    assert b"".join(pb.decompress_all(fragment.compression_codec, path.read_bytes())) == content
    assert await caller.read() == content
    assert await caller.read(offset=299_990, end_offset=300_007) == content[299_990:300_007]
    assert await caller.read(offset=len(content) - 1) == content[-1:]
    left = [p for p in (directory / "journals").rglob("*.spool") if p.stat().st_size]
    assert left == [], "local content is released"


async def test_requests_are_counted_by_their_status(broker: EmbeddedBroker, caller: Caller) -> None:
    await caller.create(journal_spec())
    await caller.commit(b"content")
    assert await caller.read() == b"content"
    assert await caller.read("test/none") == b""
    assert await caller.read(offset=7) == b""
    await caller.fragments_call(pb.FragmentsRequest(journal="test/none"))
    checked = await caller.health_call(
        pb.FragmentStoreHealthRequest(fragment_store="s3://a-bucket/?endpoint=http://no.such.host/")
    )
    assert checked.status == pb.Status.FRAGMENT_STORE_UNHEALTHY
    completed = broker.core.metrics.completed
    reads = {status: n for (operation, status), n in completed.items() if operation == "Read"}
    assert reads == {"ok": 1, "JOURNAL_NOT_FOUND": 1, "OFFSET_NOT_YET_AVAILABLE": 1}
    assert completed["ListFragments", "JOURNAL_NOT_FOUND"] == 1
    assert completed["FragmentStoreHealth", "ok"] == 1


async def test_content_of_an_earlier_run_is_persisted(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path, fsync="off") as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec(stores=["file:///"], length=1024))
            await caller.commit(b"a" * 1500)
            await caller.commit(b"b" * 1500)
    async with EmbeddedBroker(tmp_path, fsync="off", persist_delay=0.0) as broker:

        async def persisted() -> bool:
            return len(list((tmp_path / "fragments").rglob("*.raw"))) == 1

        await eventually(persisted)
        async with calling(broker.endpoint) as caller:
            assert await caller.read() == b"a" * 1500 + b"b" * 1500


async def test_a_persisted_fragment_is_not_lost_by_a_listing_under_way(
    broker: EmbeddedBroker, caller: Caller
) -> None:
    await caller.create(journal_spec(stores=["file:///"], length=1024))
    total = 0
    for _ in range(20):
        await caller.commit(b"x" * 1100)
        total += 1100
        await asyncio.gather(broker.flush(), broker.refresh(), broker.refresh())
        fragments = await caller.fragments()
        assert sum(f.end - f.begin for f in fragments) == total
    assert len(await caller.read()) == total


async def test_names_never_lead_out_of_the_directories(tmp_path: Path) -> None:
    data = tmp_path / "inner" / "data"
    async with EmbeddedBroker(data, fsync="off", store_wait=0.1) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(
                journal_spec("../../escape/local"),
                journal_spec("../../escape/stored", stores=["file:///"]),
                journal_spec("test/fine", stores=["file:///../../escape/"]),
            )
            await caller.commit(b"local", "../../escape/local")
            for name in ("../../escape/stored", "test/fine"):
                response = await caller.append(b"stored", name)
                assert response.status == pb.Status.FRAGMENT_STORE_UNHEALTHY
                assert "leads out of its root" in response.store_health_error
    assert os.listdir(tmp_path) == ["inner"]
    assert os.listdir(tmp_path / "inner") == ["data"]


async def test_stores_without_a_client_are_unhealthy(
    broker: EmbeddedBroker, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    request = pb.FragmentStoreHealthRequest(fragment_store="s3://bucket/prefix/")
    response = await caller.health_call(request)
    assert response.status == pb.Status.FRAGMENT_STORE_UNHEALTHY
    expected = "fragment stores of scheme s3 need obstore: pip install 'gazette-aio[server]'"
    assert response.store_health_error == expected


# Reads and appends


async def test_chunks_are_as_long_as_asked_for(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path, fsync="off", chunk_size=5) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec())
            await caller.commit(b"foobarbaz")
            request = pb.ReadRequest(journal="test/journal", block=True)
            read = caller.read_call(request)
            seen = [await read.read() for _ in range(3)]
            assert [(r.offset, r.write_head, r.content) for r in seen] == [
                (0, 9, b""),
                (0, 0, b"fooba"),
                (5, 0, b"rbaz"),
            ]
            await caller.commit(b"bing")
            seen = [await read.read() for _ in range(2)]
            assert [(r.offset, r.fragment.begin, r.fragment.end) for r in seen] == [
                (9, 9, 13),
                (9, 0, 0),
            ]
            read.cancel()


async def test_large_appends_are_read_back(broker: EmbeddedBroker, caller: Caller) -> None:
    await caller.create(journal_spec(length=64 << 20))
    content = os.urandom(5 << 20)
    for size in (3 << 20, len(content)):
        call = caller.append_call()
        await call.write(pb.AppendRequest(journal="test/journal"))
        for start in range(0, size, 3 << 20):
            await call.write(
                pb.AppendRequest(content=content[start : min(start + (3 << 20), size)])
            )
        await call.write(pb.AppendRequest())
        await call.done_writing()
        response = await call
        digest = hashlib.sha1(content[:size]).digest()
        assert pb.sum_to_digest(response.commit.sum) == digest
    assert await caller.read() == content[: 3 << 20] + content
    sums = [pb.sum_to_digest(fragment.sum) for fragment in await caller.fragments()]
    assert sums == [hashlib.sha1(c).digest() for c in (content[: 3 << 20], content)]


@pytest.mark.parametrize("fsync", ["off", "commit", "interval"])
async def test_concurrent_appends_are_contiguous(tmp_path: Path, fsync: FsyncMode) -> None:
    async with EmbeddedBroker(tmp_path, fsync=fsync) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec(length=1024))
            records = [f"<{number}>".encode() * 20 for number in range(60)]
            begins = await asyncio.gather(*map(caller.commit, records))
            expected = b"".join(record for _, record in sorted(zip(begins, records, strict=True)))
            assert await caller.read() == expected


# Scale


async def test_files_of_idle_journals_are_closed(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path, fsync="off") as broker:
        broker.core.replicas.max_open = 8
        async with calling(broker.endpoint) as caller:
            names = [f"test/journal-{number}" for number in range(40)]
            await caller.create(*map(journal_spec, names))
            for content in (b"one", b"two"):
                for name in names:
                    await caller.commit(content, name)
            spools = len([r for r in broker.core.replicas if r.head.spool.is_open])
            assert spools <= 8
            for name in names:
                assert await caller.read(name) == b"onetwo"


async def test_an_append_may_stream_while_the_one_before_it_is_synced(tmp_path: Path) -> None:
    entered, release = threading.Event(), threading.Event()

    class SlowFiles(FileOps):
        def datasync(self, descriptor: int) -> None:
            if threading.current_thread().name.startswith("broker-io") and blocking:
                entered.set()
                assert release.wait(30)

    blocking = False
    async with EmbeddedBroker(tmp_path, fsync="commit", files=SlowFiles()) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec())
            await caller.commit(b"a")
            await caller.commit(b"b")
            blocking = True
            appends = [asyncio.create_task(caller.append(b"c"))]
            assert await asyncio.to_thread(entered.wait, 30)
            appends += [asyncio.create_task(caller.append(b"d")) for _ in range(5)]
            replica = next(iter(broker.core.replicas))

            async def all_written() -> bool:
                return replica.head.offset == 8

            await eventually(all_written)
            assert not any(append.done() for append in appends)
            # Readers see what's durable, and only that.
            assert await caller.read() == b"ab"
            release.set()
            responses = await asyncio.gather(*appends)
            # Race: which of the five comes next is up to their RPCs.
            begins = [response.commit.begin for response in responses]
            assert (begins[0], sorted(begins[1:])) == (2, [3, 4, 5, 6, 7])
            assert await caller.read() == b"abcddddd"
            blocking = False


async def test_content_which_is_persisted_meanwhile_is_still_read(
    broker: EmbeddedBroker, caller: Caller
) -> None:
    await caller.create(journal_spec(stores=["file:///"], length=8 << 20))
    content = os.urandom(3 << 20)
    await caller.commit(content)
    received: list[bytes] = []

    async def send(response: pb.ReadResponse | ContentChunk) -> None:
        if isinstance(response, ContentChunk):
            received.append(response.content)
        elif not received:
            assert not response.fragment.backing_store
            await broker.flush("test/journal")
            assert [f.backing_store for f in await caller.fragments()] == ["file:///"]

    claims = pb.Claims(capability=pb.Capability.READ)
    await serve_read(broker.core, claims, pb.ReadRequest(journal="test/journal"), send)
    assert b"".join(received) == content
    assert broker.options.data_dir is not None
    spools = list((broker.options.data_dir / "journals").rglob("*.spool"))
    assert [path.stat().st_size for path in spools] == [0], "the local copy is gone"


@pytest.mark.parametrize("fsync", ["off", "commit"])
async def test_an_append_outlives_its_journal(tmp_path: Path, fsync: FsyncMode) -> None:
    async with EmbeddedBroker(tmp_path, fsync=fsync) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec())
            call = caller.append_call()
            await call.write(pb.AppendRequest(journal="test/journal"))
            await call.write(pb.AppendRequest(content=b"content"))

            async def held() -> bool:
                return any(replica.head.is_busy for replica in broker.core.replicas)

            await eventually(held)
            await caller.delete("test/journal")
            await call.write(pb.AppendRequest())
            await call.done_writing()
            response = await call
            assert (response.status, response.commit.end) == (pb.Status.OK, 7)
            refused = await caller.append(b"more")
            assert refused.status == pb.Status.JOURNAL_NOT_FOUND

            async def removed() -> bool:
                return not list((tmp_path / "journals").iterdir())

            await eventually(removed)


async def test_appends_wait_for_a_store_side_by_side(tmp_path: Path) -> None:
    async with EmbeddedBroker(
        tmp_path / "data", fsync="off", file_root=tmp_path, store_wait=0.3
    ) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec(stores=["file:///missing/"]))
            # One after the other they'd take a minute.
            async with asyncio.timeout(30):
                responses = await asyncio.gather(*(caller.append(b"x") for _ in range(200)))
            statuses = {response.status for response in responses}
            assert statuses == {pb.Status.FRAGMENT_STORE_UNHEALTHY}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
async def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    def descriptors() -> set[str]:
        links: set[str] = set()
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                links.add(os.readlink(f"/proc/self/fd/{name}"))
        return {link for link in links if str(tmp_path) in link}

    broker = EmbeddedBroker(tmp_path, fsync="commit")
    await broker.start()
    async with calling(broker.endpoint) as caller:
        names = [f"test/journal-{number}" for number in range(5)]
        await caller.create(*(journal_spec(name, stores=["file:///"]) for name in names))
        for name in names:
            await caller.commit(b"content", name)
        await broker.flush(names[0])
        await caller.delete(names[1])
        assert await caller.read(names[0]) == b"content"
        pending = caller.append_call()
        await pending.write(pb.AppendRequest(journal=names[2]))
        await pending.write(pb.AppendRequest(content=b"x"))
        assert descriptors()
        await broker.stop(0.1)
        with pytest.raises(grpc.aio.AioRpcError):
            await pending
    assert descriptors() == set()
