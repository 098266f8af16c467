"""Requests cancelled at each of their suspensions: done as a whole, or without a trace."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker.core import BrokerCore
from gazette_aio.broker.host.files import FileOps
from gazette_aio.broker.host.options import FsyncMode
from gazette_aio.broker.service.read import ContentChunk
from tests.broker.caller import journal_spec
from tests.broker.journal.crash_files import RecordingFiles
from tests.broker.journal.test_crash_points import CLAIMS, read, running, send
from tests.broker.served import serve_append, serve_apply, serve_fragments, serve_list, serve_read
from tests.cancellation import cancel_at_every_await
from tests.waiting import eventually

NAME = "test/journal"
NEXT = b"next "
MIB = 1 << 20
ALWAYS = "broker-scheduler"
"""The one task which a broker always has, once there's something to do later."""

Suspend = pb.AppendRequest.Suspend


class Site:
    """A broker, and what its journal is to hold."""

    def __init__(self, core: BrokerCore, files: RecordingFiles) -> None:
        self.core = core
        self.content = b""
        self.begin = 0
        """Offset which the content begins at."""
        self.last = ""
        self.number = 0
        self._files = files
        self._tasks = asyncio.all_tasks()
        self._open_files = files.open_files

    async def apply(self, *changes: pb.JournalSpec | str) -> None:
        request = pb.ApplyRequest()
        for change in changes:
            if isinstance(change, str):
                request.changes.add(delete=change, expect_mod_revision=-1)
            else:
                request.changes.add(upsert=change, expect_mod_revision=-1)
        assert (await serve_apply(self.core, CLAIMS, request)).status == pb.Status.OK

    async def append(self, *pieces: bytes) -> None:
        """Append, with a register which tells the appends apart."""
        self.number += 1
        await self.request(f"{self.number}", *pieces)

    async def request(self, name: str, *pieces: bytes) -> pb.AppendResponse:
        registers = pb.label_set("last", name)

        async def messages() -> AsyncIterator[pb.AppendRequest | bytes]:
            yield pb.AppendRequest(journal=NAME, union_registers=registers)
            for piece in pieces:
                await asyncio.sleep(0)
                yield piece
            await asyncio.sleep(0)
            yield pb.AppendRequest()
            await asyncio.sleep(0)

        return await serve_append(self.core, CLAIMS, messages())

    async def verify(self, *pieces: bytes) -> None:
        """Require that the last append is there as a whole or not at all, and go on behind it."""
        barrier = await send(self.core, journal=NAME)
        assert barrier.status == pb.Status.OK
        data = b"".join(pieces)
        if data and barrier.commit.begin == self.begin + len(self.content + data):
            self.content += data
            self.last = f"{self.number}"
        assert barrier.commit.begin == self.begin + len(self.content)
        assert pb.value_of(barrier.registers, "last") == self.last
        response = await self.request(self.last or "first", NEXT)
        self.last = self.last or "first"
        assert response.commit.begin == self.begin + len(self.content)
        self.content += NEXT
        await self.verify_content()

    async def verify_content(self) -> None:
        """Require that readers see the content, and that nothing is left of anybody."""
        end = self.begin + len(self.content)
        assert await read(self.core, NAME, self.begin, end) == self.content
        await self.settled()

    async def settled(self) -> None:
        """Require that neither tasks, nor waiters, nor open files are left."""
        current = asyncio.current_task()

        async def is_settled() -> bool:
            for replica in self.core.replicas:
                replica.head.close_files()
            tasks = {task for task in asyncio.all_tasks() - {current} if task.get_name() != ALWAYS}
            return (
                tasks <= self._tasks
                and self._files.open_files == self._open_files
                and not any(r.index.waiters or r.head.is_busy for r in self.core.replicas)
            )

        await eventually(is_settled)


@asynccontextmanager
async def site_at(path: Path, fsync: FsyncMode = "commit") -> AsyncGenerator[Site]:
    """Run a broker; in the end, what it holds must be there after a restart, and after a kill."""
    files = RecordingFiles(path)
    async with running(path / "data", files, fsync) as core:
        site = Site(core, files)
        yield site
        names = [item.name for item in core.space]
        shutil.copytree(path / "data", path / "killed")
    assert files.open_files == 0
    for directory in ("data", "killed"):
        async with running(path / directory, FileOps()) as core:
            assert [item.name for item in core.space] == names
            end = site.begin + len(site.content)
            assert await read(core, NAME, site.begin, end) == site.content
            if site.content:
                assert (await send(core, journal=NAME)).commit.begin == end


SHAPES: dict[str, tuple[bytes, ...]] = {
    "small": (b"one ", b"two "),
    "large": (b"x" * MIB, b"y" * MIB, b"z" * 100),
}


@pytest.mark.parametrize("fsync", ["off", "commit"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_appends(tmp_path: Path, shape: str, fsync: FsyncMode) -> None:
    pieces = SHAPES[shape]
    async with site_at(tmp_path, fsync) as site:
        await site.apply(journal_spec(length=1 << 30))
        assert await _every(lambda: site.append(*pieces), lambda: site.verify(*pieces)) > 3


async def test_appends_which_open_a_journal(tmp_path: Path) -> None:
    async with site_at(tmp_path) as site:
        spec = journal_spec(stores=["file:///"])
        await site.apply(spec)

        async def check() -> None:
            await site.verify(b"content")
            # Its files are recovered by the next one, and its stores listed.
            await site.apply(journal_spec(stores=["file:///"], suspend={"level": 2, "offset": 0}))
            await site.apply(spec)

        assert await _every(lambda: site.append(b"content"), check) > 5


async def test_appends_which_roll(tmp_path: Path) -> None:
    piece = b"r" * 1500
    async with site_at(tmp_path) as site:
        await site.apply(journal_spec(length=1024, stores=["file:///"]))

        async def check() -> None:
            await site.verify(piece)
            await site.verify(piece)  # The next one rolls, again.

        await site.append(piece)
        await check()
        assert await _every(lambda: site.append(piece), check) >= 5


async def test_appends_which_resume(tmp_path: Path) -> None:
    async with site_at(tmp_path) as site:
        await site.apply(journal_spec())

        async def check() -> None:
            await site.verify(b"content")
            response = await send(site.core, journal=NAME, suspend=Suspend.SUSPEND_NOW)
            assert response.status == pb.Status.SUSPENDED

        await check()
        assert await _every(lambda: site.append(b"content"), check) > 3


async def test_suspensions(tmp_path: Path) -> None:
    async with site_at(tmp_path) as site:
        await site.apply(journal_spec())
        await site.verify()

        async def suspend() -> None:
            await send(site.core, journal=NAME, suspend=Suspend.SUSPEND_NOW)

        assert await _every(suspend, site.verify) >= 3


async def test_appends_which_wait_for_their_turn(tmp_path: Path) -> None:
    async with site_at(tmp_path) as site:
        await site.apply(journal_spec())
        neighbours: list[asyncio.Task[Any]] = []

        async def append() -> None:
            for number in range(2):
                neighbours.append(
                    asyncio.create_task(send(site.core, b"one ", b"by one ", journal=NAME))
                )
                if not number:
                    await asyncio.sleep(0)
                    await site.append(b"waits ")

        async def check() -> None:
            pieces: dict[int, bytes] = {}
            for neighbour in neighbours:
                pieces[(await neighbour).commit.begin] = b"one by one "
            neighbours.clear()
            # The one between them was taken or not, wherever it came to be.
            head = (await send(site.core, journal=NAME)).commit.begin
            rest = head - len(site.content) - sum(map(len, pieces.values()))
            assert rest in (0, len(b"waits "))
            if rest:
                places = {*range(len(site.content), head, 1)} - {
                    place
                    for begin, piece in pieces.items()
                    for place in range(begin, begin + len(piece))
                }
                pieces[min(places)] = b"waits "
                site.last = f"{site.number}"
            for begin, piece in sorted(pieces.items()):
                assert begin == len(site.content)
                site.content += piece
            await site.verify()

        assert await _every(append, check) > 3


async def test_flushes(tmp_path: Path) -> None:
    async with site_at(tmp_path) as site:
        await site.apply(journal_spec(stores=["file:///"]))
        await site.verify()
        assert await _every(lambda: site.core.flush(NAME), site.verify) >= 5
        await site.core.flush()
        stored = [f.name for f in (tmp_path / "data" / "fragments" / NAME).iterdir()]
        fragments = [pb.parse_fragment(NAME, name) for name in sorted(stored)]
        assert sum(f.end - f.begin for f in fragments) == len(site.content)


async def test_reads(tmp_path: Path) -> None:
    async with site_at(tmp_path, "off") as site:
        await site.apply(journal_spec(length=1 << 30, stores=["file:///"]))
        # Of a persisted fragment, of one which is read in a thread, and of one which isn't.
        for pieces in ((b"p" * MIB,), (b"t" * MIB, b"T" * MIB), (b"short",)):
            await site.append(*pieces)
            await site.verify(*pieces)
            if pieces[0].startswith(b"p"):
                await site.core.flush()
        received = b""

        async def take(response: pb.ReadResponse | ContentChunk) -> None:
            nonlocal received
            await asyncio.sleep(0)
            if not isinstance(response, pb.ReadResponse):
                received += response.content

        async def read_all() -> None:
            nonlocal received
            received = b""
            request = pb.ReadRequest(journal=NAME, end_offset=len(site.content), block=True)
            await serve_read(site.core, CLAIMS, request, take)
            assert received == site.content

        async def check() -> None:
            assert site.content.startswith(received)
            await site.verify_content()

        assert await _every(read_all, check) > 20


async def test_blocked_reads(tmp_path: Path) -> None:
    async with site_at(tmp_path, "off") as site:
        await site.apply(journal_spec())
        await site.verify()

        appends: list[asyncio.Task[pb.AppendResponse]] = []

        async def read_on() -> None:
            end = len(site.content) + len(b"behind")
            appends.append(asyncio.create_task(send(site.core, b"behind", journal=NAME)))
            request = pb.ReadRequest(journal=NAME, offset=-1, end_offset=end, block=True)
            await serve_read(site.core, CLAIMS, request, _ignore)

        async def check() -> None:
            await appends.pop()
            site.content += b"behind"
            await site.verify()

        assert await _every(read_on, check) > 1


async def _ignore(_response: object) -> None:
    await asyncio.sleep(0)


class _SeenError(Exception):
    """The watch has shown enough."""


async def test_watches(tmp_path: Path) -> None:
    async with site_at(tmp_path, "off") as site:
        await site.apply(journal_spec())
        changes: list[asyncio.Task[None]] = []

        async def watch() -> None:
            snapshots: list[int] = []

            async def take(response: pb.ListResponse) -> None:
                await asyncio.sleep(0)
                if response.journals:
                    snapshots.append(len(response.journals))
                    labels = pb.label_set("turn", str(len(snapshots)))
                    changes.append(asyncio.create_task(site.apply(journal_spec(labels=labels))))
                if len(snapshots) == 3:
                    raise _SeenError

            with contextlib.suppress(_SeenError):
                await serve_list(site.core, CLAIMS, pb.ListRequest(watch=True), take)

        async def check() -> None:
            await asyncio.gather(*changes)
            changes.clear()
            await site.verify()

        assert await _every(watch, check) > 5


async def test_listings_of_fragments(tmp_path: Path) -> None:
    async with site_at(tmp_path, "off") as site:
        spec = journal_spec(stores=["file:///"])
        await site.apply(spec)
        await site.verify()

        async def fragments() -> None:
            request = pb.FragmentsRequest(journal=NAME, signatureTTL={"seconds": 9})  # type: ignore[arg-type]
            response = await serve_fragments(site.core, CLAIMS, request)
            assert response.status == pb.Status.OK

        async def check() -> None:
            await site.verify()
            await site.apply(journal_spec(stores=["file:///"], suspend={"level": 2, "offset": 0}))
            await site.apply(spec)

        await check()
        assert await _every(fragments, check) >= 1


@pytest.mark.parametrize("fsync", ["off", "commit"])
async def test_transactions(tmp_path: Path, fsync: FsyncMode) -> None:
    async with site_at(tmp_path, fsync) as site:
        space = site.core.space
        number = revision = 0

        async def apply() -> None:
            nonlocal number
            number += 1
            names = [f"test/made-{number:03}", f"test/also-{number:03}"]
            await site.apply(*map(journal_spec, names))

        async def check() -> None:
            nonlocal revision
            made = [space.get(f"test/{kind}-{number:03}") for kind in ("made", "also")]
            assert (made[0] is None) == (made[1] is None)
            assert space.revision == revision + (made[0] is not None)
            await site.apply(journal_spec(f"test/next-{number:03}"))
            revision += 1 + (made[0] is not None)
            assert space.revision == revision
            await site.verify()

        await site.apply(journal_spec())
        revision = space.revision
        assert await _every(apply, check) >= 1


async def _every(operation: Callable[[], Any], check: Callable[[], Awaitable[None]]) -> int:
    async with asyncio.timeout(55):
        return await cancel_at_every_await(operation, check)
