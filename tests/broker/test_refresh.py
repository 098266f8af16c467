"""What journals make of their stores: listings, writes, and changes of their specs."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.broker.clock import ManualClock
from gazette_aio.broker.files import FileOps
from gazette_aio.broker.stores import FileStore
from tests.broker.caller import Caller, calling, eventually, journal_spec

NAME = "test/journal"
FULL = pb.JournalSpec.Suspend(level=pb.JournalSpec.Suspend.Level.FULL)


def file_name(begin: int, content: bytes) -> str:
    digest = hashlib.sha1(content).hexdigest()
    return f"{begin:016x}-{begin + len(content):016x}-{digest}.raw"


def put(directory: Path, begin: int, content: bytes) -> Path:
    path = directory / NAME / file_name(begin, content)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def fragment_files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.raw"))


def new_broker(path: Path, **options: Any) -> EmbeddedBroker:
    (path / "root" / "b").mkdir(parents=True, exist_ok=True)
    options = {
        "fsync": "off",
        "persist_delay": 0.0,
        "http_port": None,
        "file_root": path / "root",
        **options,
    }
    return EmbeddedBroker(path / "data", **options)


async def waiting_read(broker: EmbeddedBroker, caller: Caller, offset: int) -> Any:
    call = caller.read_call(pb.ReadRequest(journal=NAME, offset=offset, block=True))

    async def waits() -> bool:
        return any(replica.waiters for replica in broker.core.replicas)

    reading = asyncio.ensure_future(call.read())
    await eventually(waits)
    return reading


# Changes of specs


async def test_readers_who_wait_see_a_new_store(tmp_path: Path) -> None:
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec(stores=["file:///"]))
        reading = await waiting_read(broker, caller, 0)
        put(tmp_path / "root" / "b", 0, b"hello")
        await caller.create(journal_spec(stores=["file:///", "file:///b/"]))
        async with asyncio.timeout(5):
            response = await reading
        assert (response.fragment.backing_store, response.write_head) == ("file:///b/", 5)


async def test_another_store_is_tried_at_once(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        new_broker(tmp_path, clock=clock, persist_delay=1.0, persist_retry=100.0) as broker,
        calling(broker.endpoint) as caller,
    ):
        await caller.create(journal_spec(stores=["file:///"]))
        await caller.commit(b"content")
        await caller.commit(b"more")  # The first fragment is complete, as the first of a journal.
        failure = broker.control.fail_store("file:///")
        clock.advance(1)
        await broker.control.settled()
        assert failure.hits
        await caller.create(journal_spec(stores=["file:///b/"]))
        clock.advance(1)
        await broker.control.settled()
        name = file_name(0, b"content")
        assert fragment_files(tmp_path / "root") == [f"b/{NAME}/{name}"]


async def test_a_shorter_refresh_interval_holds_at_once(tmp_path: Path) -> None:
    clock = ManualClock()
    async with new_broker(tmp_path, clock=clock) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec(stores=["file:///"]))
        reading = await waiting_read(broker, caller, 0)
        put(tmp_path / "root", 0, b"hello")
        await caller.create(journal_spec(stores=["file:///"], refresh_interval={"seconds": 60}))
        clock.advance(60)
        async with asyncio.timeout(5):
            assert (await reading).write_head == 5


async def test_fragments_of_stores_which_were_removed_are_dropped(tmp_path: Path) -> None:
    put(tmp_path / "root", 0, b"hello")
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec(stores=["file:///"]))
        assert [fragment.end for fragment in await caller.fragments()] == [5]
        await caller.create(journal_spec())
        assert await caller.fragments() == []
        await caller.create(journal_spec(stores=["file:///"]))
        assert [fragment.end for fragment in await caller.fragments()] == [5]


# What's left by an earlier run


@pytest.mark.parametrize("suspended", [False, True])
async def test_what_an_earlier_run_left_is_flushed(tmp_path: Path, suspended: bool) -> None:
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec("test/kept"), journal_spec("test/bare"))
        await caller.commit(b"content", "test/kept")
        await caller.commit(b"content", "test/bare")
        suspend = FULL if suspended else pb.JournalSpec.Suspend()
        if suspended:
            await caller.create(journal_spec("test/kept", stores=["file:///"], suspend=suspend))
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        broker.control.clock.freeze()  # Nothing happens but what's asked for.
        await caller.create(journal_spec("test/kept", stores=["file:///"], suspend=suspend))
        assert fragment_files(tmp_path / "root") == []
        await broker.core.replicas.flush_all()
        name = file_name(0, b"content")
        assert fragment_files(tmp_path / "root") == [f"test/kept/{name}"]
        assert "test/bare" not in {replica.name for replica in broker.core.replicas}


async def test_a_store_which_comes_later_takes_what_an_earlier_run_left(tmp_path: Path) -> None:
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec("test/kept"))
        await caller.commit(b"content", "test/kept")
    async with (
        new_broker(tmp_path, pulse_interval=0.01) as broker,
        calling(broker.endpoint) as caller,
    ):
        await caller.create(journal_spec("test/kept", stores=["file:///"]))

        async def is_persisted() -> bool:
            return bool(fragment_files(tmp_path / "root"))

        await eventually(is_persisted)


async def test_all_are_flushed_though_one_fails(tmp_path: Path) -> None:
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        for number in range(3):
            spec = journal_spec(f"test/{number}", stores=["file:///b/" if number else "file:///"])
            await caller.create(spec)
            await caller.commit(b"content", spec.name)
        with broker.control.fail_store("file:///"), pytest.raises(pb.StoreError):
            await broker.core.replicas.flush_all()
        assert len(fragment_files(tmp_path / "root" / "b")) == 2
        assert len(fragment_files(tmp_path / "root")) == 2


async def test_a_silent_store_keeps_no_other_from_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOFTESTS")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret/of-tests")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(100)
        store = f"s3://bucket/?endpoint=http://127.0.0.1:{silent.getsockname()[1]}"
        async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
            for number in range(24):
                name = f"test/{number:02}"
                await caller.create(journal_spec(name))
                await caller.commit(b"content", name)
                at = store if number < 20 else "file:///"
                await caller.create(journal_spec(name, stores=[at]))
            flushing = asyncio.ensure_future(broker.core.replicas.flush_all())

            async def is_persisted() -> bool:
                return len(fragment_files(tmp_path / "root")) == 4

            await eventually(is_persisted)
            assert not flushing.done()
            begun = time.monotonic()
            flushing.cancel()
            await asyncio.wait([flushing])
            await broker.stop(0.2)
            assert time.monotonic() - begun < 3


# Files


async def test_an_empty_file_is_written_anew(tmp_path: Path) -> None:
    """A crash of a broker which doesn't sync may leave one."""
    left = put(tmp_path / "root", 0, b"content")
    left.write_bytes(b"")
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec())
        await caller.commit(b"content")
        await caller.create(journal_spec(stores=["file:///"]))
        await broker.flush(NAME)
        assert left.read_bytes() == b"content"


async def test_a_directory_is_not_taken_for_a_fragment(tmp_path: Path) -> None:
    taken = put(tmp_path / "root", 0, b"content")
    taken.unlink()
    taken.mkdir()
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec(stores=["file:///"]))
        await caller.commit(b"content")
        with pytest.raises(pb.StoreError, match="is not a file"):
            await broker.flush(NAME)
        assert await caller.read() == b"content"


def test_links_which_lead_nowhere_are_not_listed(tmp_path: Path) -> None:
    directory = tmp_path / "a"
    directory.mkdir()
    (directory / "file").touch()
    (directory / "through").symlink_to("file/below")
    (directory / "long").symlink_to("x" * 300)
    store = FileStore(FileOps(), tmp_path, "file:///", sync=False)
    assert [listed.path for listed in store.list("a/")] == ["file"]


async def test_of_equal_fragments_the_last_one_by_its_path_remains(tmp_path: Path) -> None:
    content = b"content"
    for postfix in ("c", "a", "b"):
        path = tmp_path / "root" / NAME / postfix / file_name(0, content)
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        os.utime(path, (1, (1 << 40) if postfix == "b" else 7))
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec(stores=["file:///"]))
        (fragment,) = await caller.fragments()
        assert (fragment.path_postfix, fragment.mod_time) == ("c", 7)
