"""Logs of the recorder, played at each boundary, and by standbys that take over."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient, connect
from gazette_aio.consumer.recoverylog import (
    FSM,
    Author,
    LogDecoder,
    Player,
    RecordedDir,
    Recorder,
    RecorderFencedError,
    Resolved,
)
from gazette_aio.protocol.recoverylog import FSMHints
from tests import extent
from tests.consumer.recoverylog.player.logs import LOG, create_log, files_of, recover

HINTS = FSMHints(log=LOG)
NAMES = ("a", "b", "sub/c", "sub/d", "IDENTITY.next")


def make(directory: Path) -> Path:
    (directory / "sub").mkdir(parents=True, exist_ok=True)
    return directory


class Store:
    """A store that changes its recorded files at random."""

    def __init__(self, recorder: Recorder, source: random.Random) -> None:
        self.recorder = recorder
        self.directory = RecordedDir(recorder)
        self.random = source

    def files(self) -> dict[str, bytes]:
        return files_of(Path(self.recorder.directory))

    def change(self) -> None:
        source, files = self.random, sorted(self.files())
        name, other = source.choice(NAMES), source.choice(NAMES)
        kind = source.random()
        if kind < 0.3 or f"/{name}" not in files:
            with self.directory.open(name, "w") as file:
                file.pwrite(source.randbytes(source.randrange(40)), 0)
        elif kind < 0.6:
            with self.directory.open(name, "r") as file:
                file.pwrite(source.randbytes(source.randrange(1, 30)), source.randrange(30))
        elif kind < 0.7:
            self.directory.remove(name)
        elif kind < 0.8:
            self.directory.rename(name, other)
        elif kind < 0.9 and f"/{other}" not in files:
            self.directory.link(name, other)
        else:
            # Of a name of its own: a file with another path would share its content.
            content = b"%d" % source.randrange(9)
            self.directory.write_file_atomic("IDENTITY", content, temporary="identity")


async def open_store(client: JournalClient, directory: Path, source: random.Random) -> Store:
    author = Author(source.randrange(1, 1 << 31))
    recorder = await Recorder.open(client, LOG, FSM(HINTS), author, make(directory))
    return Store(recorder, source)


async def read_all(client: JournalClient, log: str) -> bytes:
    head = (await client.append(log)).commit.end
    if not head:
        return b""
    async with client.read(log, end_offset=head) as reader:
        return b"".join([chunk async for chunk in reader])


def ends_of(content: bytes) -> list[int]:
    """Return where the operations of a log end."""
    decoder = LogDecoder(LOG)
    decoder.feed(content)
    return [end for op, *_, end in decoder if op is not None]


@pytest.mark.parametrize("seed", extent.seeds(3))
async def test_each_boundary(client: JournalClient, directory: Path, seed: int):
    """A log that is cut after any operation leaves the files of then, or those between changes."""
    await create_log(client)
    store = await open_store(client, directory / "store", random.Random(seed))
    known: dict[int, dict[str, bytes]] = {}
    hints: list[tuple[int, FSMHints]] = [(0, HINTS)]
    for _ in range(25):
        store.change()
        await store.recorder.barrier()
        head = (await client.append(LOG)).commit.end
        known[head] = store.files()
        hints.append((head, await store.recorder.build_hints()))
    await store.recorder.aclose()
    content = await read_all(client, LOG)
    copy = "recovery/copy"
    await create_log(client, copy)
    done, checked = 0, 0
    for end in ends_of(content):
        await client.append(copy, content[done:end])
        done = end
        _, each = store.random.choice([item for item in hints if item[0] <= end])
        each = FSMHints.FromString(each.SerializeToString())
        each.log = copy
        await recover(client, directory / "recovered", each, wipe=True)
        if end in known:
            checked += 1
            assert files_of(directory / "recovered") == known[end]
    assert checked == len(known)


@pytest.mark.parametrize("seed", extent.seeds(3))
async def test_standbys_take_over(client: JournalClient, directory: Path, seed: int):
    """One member after the other records, while the next one's player follows the log."""
    source = random.Random(seed)
    await create_log(client)
    store = await open_store(client, directory / "0", source)
    for member in range(1, 5):
        hints = HINTS if member % 2 else await store.recorder.build_hints()
        standby = Player()
        following = asyncio.create_task(
            standby.play(hints, directory / str(member), client), name="standby"
        )
        for _ in range(10):
            store.change()
        await store.recorder.barrier()
        if source.random() < 0.5:
            await standby.tailing.wait()
        files = store.files()
        author = Author(source.randrange(1, 1 << 31))
        standby.inject_handoff(author)
        resolved = await following
        assert files_of(resolved.directory) == files
        store.change()
        with pytest.raises(RecorderFencedError):
            await store.recorder.barrier()
        await store.recorder.aclose()
        recorder = await Recorder.open(client, LOG, resolved.fsm, author, make(resolved.directory))
        store = Store(recorder, source)
    store.change()
    await store.recorder.barrier()
    await recover(client, directory / "last", await store.recorder.build_hints())
    assert files_of(directory / "last") == store.files()
    await store.recorder.aclose()


class Members(RuleBasedStateMachine):
    """A recorded directory, players that follow it, and members that take it over."""

    broker: EmbeddedBroker
    client: JournalClient
    recorder: Recorder

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.temporary = Path(tempfile.mkdtemp(prefix="gazette-played-"))
        self.directories = 0
        self.files: dict[str, bytearray] = {}
        self.fnodes: dict[str, int] = {}
        self.identity: str | None = None
        self.hints = [HINTS]
        self.standby: tuple[Player, asyncio.Task[Resolved]] | None = None

    def fresh(self) -> Path:
        self.directories += 1
        return self.temporary / str(self.directories)

    @initialize()
    def begin(self) -> None:
        self.runner.run(self.start())

    async def start(self) -> None:
        self.broker = EmbeddedBroker(self.temporary / "broker", fsync="off", http_port=None)
        await self.broker.start()
        self.client = connect(self.broker.endpoint)
        await create_log(self.client)
        await self.open(FSM(HINTS), Author.random(), self.fresh())

    async def open(self, fsm: FSM, author: Author, directory: Path) -> None:
        self.recorder = await Recorder.open(self.client, LOG, fsm, author, directory)
        self.path = directory

    # The model has the files alone: the recorder is told what became of them.

    @rule(name=st.sampled_from(NAMES))
    def create(self, name: str) -> None:
        self.fnodes[name] = self.recorder.record_create(self.path / name)
        self.files = {path: file for path, file in self.files.items() if path != name}
        self.files[name] = bytearray()

    @precondition(lambda self: self.files)
    @rule(data=st.data(), content=st.binary(min_size=1, max_size=12), offset=st.integers(0, 16))
    def write(self, data: Any, content: bytes, offset: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.files)))
        file = self.files[name]
        self.recorder.record_write_at(self.fnodes[name], content, offset)
        file.extend(bytes(max(0, offset + len(content) - len(file))))
        file[offset : offset + len(content)] = content

    @precondition(lambda self: self.files)
    @rule(data=st.data())
    def remove(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.files)))
        self.recorder.record_remove(self.path / name)
        del self.files[name], self.fnodes[name]

    @precondition(lambda self: self.files)
    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def link(self, data: Any, name: str) -> None:
        source = data.draw(st.sampled_from(sorted(self.files)))
        if name not in self.files:
            self.recorder.record_link(self.path / source, self.path / name)
            self.files[name], self.fnodes[name] = self.files[source], self.fnodes[source]

    @precondition(lambda self: self.files)
    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def rename(self, data: Any, name: str) -> None:
        source = data.draw(st.sampled_from(sorted(self.files)))
        self.recorder.record_rename(self.path / source, self.path / name)
        if self.fnodes.get(name) != self.fnodes[source]:
            self.files[name], self.fnodes[name] = self.files.pop(source), self.fnodes.pop(source)

    @rule()
    def store_hints(self) -> None:
        self.hints.append(self.runner.run(self.recorder.build_hints()))

    @rule(which=st.integers(0, 9))
    def recover(self, which: int) -> None:
        self.runner.run(self.play(self.hints[-1 - which % len(self.hints)]))

    async def play(self, hints: FSMHints) -> None:
        await self.recorder.barrier()
        resolved = await recover(self.client, self.fresh(), hints)
        self.check(resolved)

    def check(self, resolved: Resolved) -> None:
        expected = {f"/{name}": bytes(file) for name, file in self.files.items()}
        assert files_of(resolved.directory) == expected
        assert resolved.fsm.links == {f"/{name}": fnode for name, fnode in self.fnodes.items()}

    @precondition(lambda self: self.standby is None)
    @rule(which=st.integers(0, 9))
    def follow(self, which: int) -> None:
        self.runner.run(self.begin_to_follow(self.hints[-1 - which % len(self.hints)]))

    async def begin_to_follow(self, hints: FSMHints) -> None:
        player = Player()
        playing = asyncio.create_task(player.play(hints, self.fresh(), self.client))
        self.standby = player, playing
        await player.tailing.wait()

    @precondition(lambda self: self.standby is not None)
    @rule(has_crashed=st.booleans())
    def promote(self, *, has_crashed: bool) -> None:
        self.runner.run(self.take_over(has_crashed=has_crashed))

    async def take_over(self, *, has_crashed: bool) -> None:
        assert self.standby is not None
        player, playing = self.standby
        self.standby = None
        await self.recorder.barrier()
        author = Author.random()
        player.inject_handoff(author)
        resolved = await playing
        self.check(resolved)
        if not has_crashed:
            self.recorder.record_create(self.path / "late")
            with pytest.raises(RecorderFencedError):
                await self.recorder.barrier()
        self.recorder.cancel()
        await self.recorder.aclose()
        await self.open(resolved.fsm, author, resolved.directory)

    def teardown(self) -> None:
        self.runner.run(self.stop())
        self.runner.close()
        shutil.rmtree(self.temporary)

    async def stop(self) -> None:
        if not hasattr(self, "client"):
            return
        if self.standby is not None:
            self.standby[1].cancel()
            await asyncio.wait((self.standby[1],))
        await self.recorder.aclose()
        await self.client.aclose()
        await self.broker.aclose()


@pytest.mark.slow
def test_members():
    run_state_machine_as_test(Members, settings=extent.examples(15))
