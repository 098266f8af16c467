"""Random changes of recorded directories, against a model of their files."""

from __future__ import annotations

import asyncio
import os
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
    Player,
    RecordedDir,
    RecordedFile,
    Recorder,
    RecorderFencedError,
    Resolved,
)
from gazette_aio.protocol.recoverylog import FSMHints
from gazette_aio.testing.specs import create_journals, journal_spec
from tests import extent
from tests.consumer.recoverylog.recorder.support import LOG

NAMES = st.sampled_from(["a", "b", "sub/c", "sub/d", "IDENTITY.next"])
CONTENTS = st.binary(max_size=12)
OFFSETS = st.integers(0, 16)
OPEN_FILES = 3


class File:
    """Content of a file, which its paths share."""

    def __init__(self) -> None:
        self.content = bytearray()

    def write(self, data: bytes, offset: int) -> None:
        if data:
            self.content.extend(bytes(max(0, offset - len(self.content))))
            self.content[offset : offset + len(data)] = data


class RecordedDirectory(RuleBasedStateMachine):
    """A recorded directory, which one recorder after the other has."""

    broker: EmbeddedBroker
    client: JournalClient
    recorder: Recorder
    directory: RecordedDir

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.temporary = Path(tempfile.mkdtemp(prefix="gazette-recorded-"))
        self.files: dict[str, File] = {}
        self.identity: str | None = None
        self.opened: list[tuple[RecordedFile, File]] = []
        self.authors = 0
        self.recoveries = 0
        self.block: Any = None

    @initialize()
    def begin(self) -> None:
        self.runner.run(self.start())

    async def start(self) -> None:
        self.broker = EmbeddedBroker(self.temporary / "broker", fsync="off")
        await self.broker.__aenter__()
        self.client = connect(self.broker.endpoint)
        await create_journals(self.client, journal_spec(LOG))
        (self.temporary / "0" / "sub").mkdir(parents=True)
        await self.open(FSM(FSMHints(log=LOG)))

    async def open(self, fsm: FSM) -> None:
        self.authors += 1
        self.recorder = await Recorder.open(
            self.client,
            LOG,
            fsm,
            Author(self.authors),
            self.temporary / str(self.authors - 1),
        )
        self.directory = RecordedDir(self.recorder)

    @rule(name=NAMES, content=CONTENTS)
    def create(self, name: str, content: bytes) -> None:
        with self.directory.open(name, "w") as file:
            file.pwrite(content, 0)
        model = self.files[name] = File()
        model.write(content, 0)

    @precondition(lambda self: len(self.opened) < OPEN_FILES)
    @rule(name=NAMES)
    def keep_open(self, name: str) -> None:
        file = self.directory.open(name, "r" if name in self.files else "x")
        self.opened.append((file, self.files.setdefault(name, File())))

    @precondition(lambda self: self.opened)
    @rule(index=st.integers(0, OPEN_FILES), content=CONTENTS, offset=OFFSETS)
    def write(self, index: int, content: bytes, offset: int) -> None:
        file, model = self.opened[index % len(self.opened)]
        file.pwrite(content, offset)
        model.write(content, offset)

    @precondition(lambda self: self.opened)
    @rule(index=st.integers(0, OPEN_FILES))
    def close(self, index: int) -> None:
        file, model = self.opened.pop(index % len(self.opened))
        assert os.pread(file.fileno(), 100, 0) == model.content
        file.close()

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        if name in self.files:
            self.directory.remove(name)
            del self.files[name]
            return
        with pytest.raises(FileNotFoundError):
            self.directory.remove(name)

    @rule(name=NAMES, other=NAMES)
    def rename(self, name: str, other: str) -> None:
        if name not in self.files:
            with pytest.raises(FileNotFoundError):
                self.directory.rename(name, other)
            return
        self.directory.rename(name, other)
        if self.files[name] is not self.files.get(other):
            self.files[other] = self.files.pop(name)

    @rule(name=NAMES, other=NAMES)
    def link(self, name: str, other: str) -> None:
        if name not in self.files or other in self.files:
            with pytest.raises(OSError):
                self.directory.link(name, other)
            return
        self.directory.link(name, other)
        self.files[other] = self.files[name]

    @rule(text=st.text("äb", max_size=3))
    def identify(self, text: str) -> None:
        self.directory.write_file_atomic("IDENTITY", text.encode(), temporary="identity")
        self.identity = text

    @rule(name=NAMES, chunks=st.lists(CONTENTS, max_size=3))
    def replace(self, name: str, chunks: list[bytes]) -> None:
        self.directory.write_file_atomic(name, chunks)
        self.files[name] = File()
        self.files[name].write(b"".join(chunks), 0)

    @rule()
    def begin_or_end_atomic_block(self) -> None:
        if self.block is None:
            self.block = self.recorder.atomic()
            self.block.__enter__()
            return
        self.end_atomic_block()

    def end_atomic_block(self) -> None:
        if self.block is not None:
            self.block.__exit__(None, None, None)
            self.block = None

    @precondition(lambda self: self.block is None)
    @rule(budget=st.sampled_from([1, 1 << 18]))
    def check(self, budget: int) -> None:
        hints = self.runner.run(self.recorder.build_hints(budget_bytes=budget))
        played = [self.runner.run(self.recover(given)) for given in (hints, FSMHints(log=LOG))]
        assert played[0].fsm.next_checksum == played[1].fsm.next_checksum
        assert played[0].fsm.links == played[1].fsm.links == self.recorder.links()

    async def recover(self, hints: FSMHints) -> Resolved:
        self.recoveries += 1
        player = Player()
        player.finish_at_write_head()
        directory = self.temporary / f"recovered-{self.recoveries}"
        resolved = await player.play(hints, directory, self.client)
        self.check_files(directory)
        return resolved

    @precondition(lambda self: self.block is None)
    @rule(from_hints=st.booleans(), has_crashed=st.booleans())
    def take_over(self, from_hints: bool, has_crashed: bool) -> None:
        """Play the log into another directory, which the next recorder has."""
        self.runner.run(self.hand_over(from_hints=from_hints, has_crashed=has_crashed))

    async def hand_over(self, *, from_hints: bool, has_crashed: bool) -> None:
        for file, _ in self.opened:
            file.close()
        self.opened.clear()
        before = self.recorder
        hints = await before.build_hints() if from_hints else FSMHints(log=LOG)
        if not has_crashed:
            await before.aclose()
        elif not from_hints:
            await before.barrier()
        player = Player()
        player.inject_handoff(Author(self.authors + 1))
        resolved = await player.play(hints, self.temporary / str(self.authors), self.client)
        self.check_files(resolved.directory)
        (resolved.directory / "sub").mkdir(exist_ok=True)
        await self.open(resolved.fsm)
        if has_crashed:
            before.record_create(Path(before.directory) / "lost")
            with pytest.raises(RecorderFencedError):
                await before.barrier()
            await before.aclose()

    def check_files(self, directory: Path) -> None:
        """Check the files of a directory, and those which are recorded."""
        files = {name: bytes(file.content) for name, file in self.files.items()}
        if self.identity is not None:
            files["IDENTITY"] = self.identity.encode()
        for root in (directory, Path(self.recorder.directory)):
            assert {
                str(path.relative_to(root)): path.read_bytes()
                for path in root.rglob("*")
                if path.is_file()
            } == files

    def teardown(self) -> None:
        try:
            if hasattr(self, "directory"):
                self.end_atomic_block()
                self.runner.run(self.stop())
        finally:
            self.runner.close()
            shutil.rmtree(self.temporary)

    async def stop(self) -> None:
        try:
            for file, _ in self.opened:
                file.close()
            await self.recorder.aclose()
            await self.recover(FSMHints(log=LOG))
        finally:
            await self.client.aclose()
            await self.broker.__aexit__(None, None, None)


@pytest.mark.slow
def test_recorded_directories():
    run_state_machine_as_test(RecordedDirectory, settings=extent.examples(15))
