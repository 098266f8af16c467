"""A crash between any two operations on files: what was acknowledged is there, and nothing else."""

from __future__ import annotations

import contextlib
import copy
import errno
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker.core import BrokerCore
from gazette_aio.broker.host.files import FileOps
from gazette_aio.broker.host.options import BrokerOptions, FsyncMode
from gazette_aio.broker.keyspace import meta_log
from gazette_aio.broker.service.read import ContentChunk
from gazette_aio.serving.rpc_error import RpcError
from tests import extent
from tests.broker.caller import journal_spec
from tests.broker.journal.crash_files import Disk, Loss, RecordingFiles, write_tree
from tests.broker.served import serve_append, serve_apply, serve_read

CLAIMS = pb.Claims(capability=pb.Capability.ALL)
Suspend = pb.AppendRequest.Suspend
Level = pb.JournalSpec.Suspend.Level


@dataclass
class Expected:
    """What a journal holds."""

    runs: list[tuple[int, bytes]] = field(default_factory=list)
    head: int = 0
    last: str = ""

    def add(self, data: bytes) -> None:
        if self.runs and self.runs[-1][0] + len(self.runs[-1][1]) == self.head:
            begin, before = self.runs[-1]
            self.runs[-1] = (begin, before + data)
        else:
            self.runs.append((self.head, data))
        self.head += len(data)


@dataclass
class Span:
    """An operation of the workload: the steps which it began and ended at, the states around it."""

    begin: int
    end: int
    before: dict[str, Expected]
    after: dict[str, Expected]
    revision: int


@asynccontextmanager
async def running(
    path: Path, files: FileOps, fsync: FsyncMode = "commit", **overrides: Any
) -> AsyncGenerator[BrokerCore]:
    options = BrokerOptions(fsync=fsync, persist_delay=0.0, files=files, **overrides)
    core = await BrokerCore.open(options, path)
    try:
        await core.serve_at("http://broker")
        yield core
    finally:
        await core.stop_serving()
        await core.aclose()


async def send(
    core: BrokerCore, *content: bytes, commit: bool = True, **fields: Any
) -> pb.AppendResponse:
    async def messages() -> AsyncIterator[pb.AppendRequest | bytes]:
        yield pb.AppendRequest(**fields)
        for piece in content:
            yield piece
        if commit:
            yield pb.AppendRequest()

    return await serve_append(core, CLAIMS, messages())


async def read(core: BrokerCore, journal: str, begin: int, end: int) -> bytes:
    parts: list[bytes] = []

    async def take(response: pb.ReadResponse | ContentChunk) -> None:
        if not isinstance(response, pb.ReadResponse):
            assert response.offset == begin + sum(map(len, parts))
            parts.append(response.content)

    request = pb.ReadRequest(journal=journal, offset=begin, end_offset=end)
    await serve_read(core, CLAIMS, request, take)
    return b"".join(parts)


class Workload:
    """Operations of one client after the other, and what each of them promises."""

    def __init__(self, files: RecordingFiles) -> None:
        self.spans: list[Span] = []
        self.state: dict[str, Expected] = {}
        self.revision = 1
        self._files = files
        self._core: BrokerCore | None = None

    @property
    def core(self) -> BrokerCore:
        assert self._core is not None
        return self._core

    @asynccontextmanager
    async def _span(self) -> AsyncGenerator[dict[str, Expected]]:
        before, begin = copy.deepcopy(self.state), len(self._files.steps)
        yield self.state
        self.revision = self.core.space.revision
        after, end = copy.deepcopy(self.state), len(self._files.steps)
        self.spans.append(Span(begin, end, before, after, self.revision))

    async def apply(self, *changes: pb.JournalSpec | str) -> None:
        async with self._span() as state:
            request = pb.ApplyRequest()
            for change in changes:
                if isinstance(change, str):
                    request.changes.add(delete=change, expect_mod_revision=-1)
                    del state[change]
                else:
                    request.changes.add(upsert=change, expect_mod_revision=-1)
                    state.setdefault(change.name, Expected())
            response = await serve_apply(self.core, CLAIMS, request)
            assert response.status == pb.Status.OK

    async def append(
        self, journal: str, *content: bytes, at: int | None = None, **fields: Any
    ) -> None:
        async with self._span() as state:
            expected = state[journal]
            data = b"".join(content)
            if data:
                expected.last = f"{len(self.spans)}"
                fields["union_registers"] = pb.label_set("last", expected.last)
            expected.head = expected.head if at is None else at
            response = await send(self.core, *content, journal=journal, **fields)
            assert response.status == pb.Status.OK, response
            assert response.commit.begin == expected.head
            if data:
                expected.add(data)

    async def suspend(self, journal: str) -> None:
        async with self._span():
            response = await send(self.core, journal=journal, suspend=Suspend.SUSPEND_NOW)
            assert response.status == pb.Status.SUSPENDED

    async def flush(self, journal: str) -> None:
        async with self._span():
            await self.core.flush(journal)

    async def run(self, path: Path) -> None:
        """Do everything that changes files."""
        async with running(path, self._files) as self._core:
            stored = journal_spec("test/stored", stores=["file:///"], length=1024)
            await self.apply(stored, journal_spec("test/local", length=1024))
            for number in range(3):
                await self.append("test/stored", b"record %d " % number * 40)
                await self.append("test/local", b"first ", b"second ")
            await self.append("test/stored", b"x" * 1200)
            await self.flush("test/stored")
            await self.append("test/stored", b"behind it")
            with pytest.raises(RpcError):
                await send(self.core, b"rolled back" * 9, commit=False, journal="test/stored")
            await self.append("test/stored", b"!")
            # A journal skips ahead, twice before it's written to.
            for offset in (2000, 3000, 4000):
                skip = journal_spec("test/local", length=1024, suspend={"offset": offset})
                await self.apply(skip)
                await self.append("test/local", at=offset)
            await self.append("test/local", b"far ahead")
            await self.apply(journal_spec("test/again"))
            await self.append("test/again", b"of its first life")
            await self.apply("test/again")
            await self.apply(journal_spec("test/again"))
            await self.append("test/again", b"of its second life")
            await self.suspend("test/stored")
            await self.append("test/stored", b"resumed")
            await self.apply(journal_spec("test/empty"))
            await self.suspend("test/empty")
            await self.append("test/empty", b"no more")
            await self.flush("test/stored")
            await self.append("test/stored")
        async with running(path, self._files) as self._core:
            await self.append("test/stored", b"after a restart")
            await self.flush("test/stored")
            await self.flush("test/local")
            await self.append("test/local", b"after a restart")


async def matches(core: BrokerCore, state: dict[str, Expected]) -> str:
    """Return how the broker differs from `state`, or an empty text."""
    names = sorted(item.name for item in core.space)
    if names != sorted(state):
        return f"journals are {names} and not {sorted(state)}"
    for name, expected in state.items():
        item = core.space.get(name)
        assert item is not None
        replica = await core.replica(item)
        registers = pb.value_of(replica.head.spool.registers, "last")
        # What an offset was raised to by a suspension is in the spec, if no fragment is there yet.
        head = max(replica.head.offset, item.spec.suspend.offset)
        if head != max(expected.head, item.spec.suspend.offset) or registers != expected.last:
            return f"{name} ends at {head} with {registers!r}, and not {expected}"
        for offset, content in expected.runs:
            found = await read(core, name, offset, offset + len(content))
            if found != content:
                return f"{name} has {found!r} and not {content!r} at {offset}"
    return ""


async def verify(path: Path, done: list[Span], current: Span | None) -> str:
    """Start a broker on what a crash left; return what's wrong, or an empty text."""
    states = [done[-1].after if done else {}]
    if current is not None:
        states.append(current.after)
    async with running(path, FileOps(), "off") as core:
        differences = [await matches(core, state) for state in states]
        if "" not in differences:
            return " and ".join(differences)
        if core.space.revision < (done[-1].revision if done else 1):
            return "the revision went back"
        for name in states[differences.index("")]:
            response = await send(core, b"next", journal=name)
            if response.status != pb.Status.OK:
                return f"{name} can't be appended to: {response.status}"
    return ""


# More of them try more mixes of what's lost.
SEEDS = extent.of(1, 10)
LOSSES = extent.of([Loss.NOTHING, Loss.ALL, Loss.ANY], list(Loss))


@pytest.mark.slow
@pytest.mark.timeout(600 * SEEDS)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.value)
async def test_a_crash_between_any_two_operations(
    tmp_path: Path, loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meta_log, "SNAPSHOT_BYTES", 700)
    live, crashed = tmp_path / "live", tmp_path / "crashed"
    live.mkdir()
    files = RecordingFiles(live)
    workload = Workload(files)
    await workload.run(live / "data")
    assert files.open_files == 0
    disk = Disk()
    wrong: list[str] = []
    seen: tuple[object, ...] = ()
    for at, step in enumerate([lambda _: None, *files.steps]):
        step(disk)
        done = [span for span in workload.spans if span.end <= at]
        current = next((span for span in workload.spans if span.begin <= at < span.end), None)
        for seed in range(SEEDS if loss is Loss.ANY else 1):
            tree = disk.after(loss, random.Random(at * 1000 + seed))
            if seen == (tree, len(done), current):
                continue
            seen = (tree, len(done), current)
            write_tree(crashed, tree)
            if difference := await verify(crashed / "data", done, current):
                wrong.append(f"{' / '.join(files.labels[:at][-3:])} (seed {seed}): {difference}")
    assert not wrong, "\n".join([f"{len(wrong)} crashes lose something, as after:", *wrong[:9]])


@pytest.mark.parametrize("loss", [Loss.ALL, Loss.CONTENT, Loss.NAMES], ids=lambda loss: loss.value)
async def test_a_power_loss_before_a_sync_leaves_a_beginning(tmp_path: Path, loss: Loss) -> None:
    live, crashed = tmp_path / "live", tmp_path / "crashed"
    live.mkdir()
    files = RecordingFiles(live)
    async with running(live / "data", files, "interval", sync_interval=3600.0) as core:
        request = pb.ApplyRequest()
        request.changes.add(upsert=journal_spec("test/journal"))
        await serve_apply(core, CLAIMS, request)
        created = len(files.steps)
        for content in (b"first ", b"second ", b"third"):  # The second one rolls.
            await send(core, content, journal="test/journal")
        steps = files.steps[:]
    disk = Disk()
    for at, step in enumerate(steps, 1):
        step(disk)
        if at < created:
            continue
        write_tree(crashed, disk.after(loss, random.Random(at)))
        async with running(crashed / "data", FileOps(), "off") as core:
            begin = (await send(core, b"!", journal="test/journal")).commit.begin
            left = b"first second third"[:begin] + b"!"
            assert await read(core, "test/journal", 0, begin + 1) == left


# One tries all operations; more leave some out.
STRIDE = extent.of(8, 1)


class Tolerant:
    """Goes on after failures, and knows only what was acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, list[tuple[int, bytes]]] = {}

    async def append(self, core: BrokerCore, journal: str, content: bytes) -> None:
        try:
            response = await send(core, content, journal=journal)
        except RpcError:
            return
        if response.status == pb.Status.OK:
            begin, end = response.commit.begin, response.commit.end
            pieces = self.acknowledged.setdefault(journal, [])
            assert all(end <= b or b + len(c) <= begin for b, c in pieces), "an offset used twice"
            pieces.append((begin, content))

    async def run(self, path: Path, files: RecordingFiles, turn: int) -> None:
        # A store which can't be written to isn't waited for.
        async with running(path, files, store_wait=0.0) as core:
            specs = [
                journal_spec("test/stored", stores=["file:///"], length=1024),
                journal_spec("test/local", length=1024, suspend={"offset": 2000 * turn}),
            ]
            for spec in specs:
                with contextlib.suppress(RpcError):
                    request = pb.ApplyRequest()
                    request.changes.add(upsert=spec, expect_mod_revision=-1)
                    await serve_apply(core, CLAIMS, request)
            for number in range(3):
                for spec in specs:
                    await self.append(core, spec.name, b"record %d-%d " % (turn, number) * 40)
                with contextlib.suppress(OSError, pb.GazetteError):
                    await core.flush()
            for spec in specs:
                await self.append(core, spec.name, b"the end")
            # What needs no recovery, which writes, can be read whatever failed. (Unless the reads
            # are to fail.)
            if files.fail_at < 0 and not turn:
                await self.verify(core, "before a restart")

    async def verify(self, core: BrokerCore, when: str) -> None:
        """Read back what was acknowledged."""
        for journal, pieces in self.acknowledged.items():
            for begin, content in pieces:
                found = await read(core, journal, begin, begin + len(content))
                assert found == content, f"{journal} at {begin}, {when}"


@pytest.mark.slow
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_any_operation_may_fail_once(tmp_path: Path, error: int) -> None:
    at, total = error % 5, 1
    while at < total:
        directory = tmp_path / str(at)
        directory.mkdir()
        files = RecordingFiles(directory)
        files.fail_at, files.failure = at, error
        tolerant = Tolerant()
        for turn in range(2):
            with contextlib.suppress(pb.ConfigurationError, pb.StoreError):
                await tolerant.run(directory / "data", files, turn)
            assert files.open_files == 0
        total = len(files.steps)
        async with running(directory / "data", FileOps(), "off") as core:
            await tolerant.verify(core, f"as {at} fails")
        at += STRIDE


@pytest.mark.slow
async def test_the_disk_may_turn_read_only(tmp_path: Path) -> None:
    at, total = -1, 1
    while at < total:
        directory = tmp_path / str(at)
        directory.mkdir()
        files = RecordingFiles(directory)
        files.read_only_at = at
        tolerant = Tolerant()
        for turn in range(2):
            with contextlib.suppress(pb.ConfigurationError, pb.StoreError):
                await tolerant.run(directory / "data", files, turn)
            assert files.open_files == 0
        if at < 0:
            total = len(files.steps)  # Of a disk which remains as it is.
            assert tolerant.acknowledged
        async with running(directory / "data", FileOps(), "off") as core:
            await tolerant.verify(core, f"read-only from {at}")
            for journal in tolerant.acknowledged:
                response = await send(core, b"next", journal=journal)
                assert response.status == pb.Status.OK
        at += STRIDE
