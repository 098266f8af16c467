"""Recorders of tests, and playback of what they recorded into memory."""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

from gazette_aio.client import JournalClient
from gazette_aio.consumer.recoverylog import (
    FSM,
    Author,
    LogDecoder,
    Outcome,
    Player,
    Recorder,
    content_checksum,
)
from gazette_aio.protocol import OffsetNotYetAvailableError
from gazette_aio.protocol.recoverylog import FSMHints, RecordedOp

LOG = "examples/integration-tests/recovery-log"
OTHER_LOG = "examples/integration-tests/other-recovery-log"
STRIP = "/strip"
FIRST, SECOND = Author(1234), Author(5678)


async def open_recorder(client: JournalClient, **options: Any) -> Recorder:
    """Return a recorder of a fresh history."""
    log = options.pop("log", LOG)
    fsm = options.pop("fsm", None) or FSM(FSMHints(log=log))
    author = options.pop("author", FIRST)
    directory = options.pop("directory", STRIP)
    return await Recorder.open(client, log, fsm, author, directory, **options)


async def reopen_recorder(client: JournalClient, **options: Any) -> Recorder:
    """Return a recorder that continues the history of the log, as the same author."""
    return await open_recorder(client, fsm=(await play(client)).fsm, **options)


async def take_over(client: JournalClient, author: Author = SECOND) -> Recorder:
    """Return a recorder of another author, who has fenced the log off."""
    player = Player()
    player.inject_handoff(author)
    with tempfile.TemporaryDirectory() as directory:
        resolved = await player.play(FSMHints(log=LOG), f"{directory}/played", client)
        return await open_recorder(client, fsm=resolved.fsm, author=author)


async def read_log(client: JournalClient, log: str = LOG, offset: int = 0) -> bytes:
    """Return the content of a log from an offset up to its head."""
    content = bytearray()
    async with client.read(log, offset=offset) as reader:
        try:
            while chunk := await reader.read():
                content += chunk
        except OffsetNotYetAvailableError:
            pass
    return bytes(content)


class Played:
    """A log, played into memory."""

    def __init__(self, content: bytes, hints: FSMHints, *, offset: int = 0) -> None:
        self.fsm = FSM(hints)
        self.end = offset + len(content)
        self.ops: list[RecordedOp] = []
        """Operations of the log."""
        self.applied: list[RecordedOp] = []
        """Operations that concern live files, or none."""
        self.contents: dict[int, bytearray] = {}
        decoder = LogDecoder(hints.log, offset)
        decoder.feed(content)
        target: tuple[bytearray, int] | None = None
        for op, _, payload, content, begin, end in decoder:
            if op is not None:
                op.log, op.first_offset, op.last_offset = hints.log, begin, end
                self.ops.append(op)
                target = self._apply(op, payload)
            if content and target is not None:
                file, at = target
                file.extend(bytes(max(0, at + len(content) - len(file))))
                file[at : at + len(content)] = content
                assert content_checksum(bytes(content)) == op.content_checksum
        decoder.end()

    def _apply(self, op: Any, payload: bytes) -> tuple[bytearray, int] | None:
        if (hinted := self.fsm.hinted_segment) is not None and (
            op.first_offset < hinted.first_offset
        ):
            return None
        if self.fsm.apply(op, payload) is not Outcome.APPLIED:
            return None
        self.applied.append(op)
        if op.HasField("create"):
            self.contents[op.seq_no] = bytearray()
        if op.HasField("write"):
            return self.contents[op.write.fnode], op.write.offset
        return None

    @property
    def files(self) -> dict[str, bytes]:
        """Contents of live files and properties by path."""
        assert not self.fsm.has_remaining_hints
        files = {path: bytes(self.contents[fnode]) for path, fnode in self.fsm.links.items()}
        return files | {path: text.encode() for path, text in self.fsm.properties.items()}


async def play(client: JournalClient, hints: FSMHints | None = None, *, log: str = LOG) -> Played:
    """Play a log from its beginning."""
    return Played(await read_log(client, log), hints or FSMHints(log=log))


def kinds(ops: list[RecordedOp]) -> list[str]:
    """Return the kinds of operations."""
    names = ("create", "link", "unlink", "write", "property")
    return [next((name for name in names if op.HasField(name)), "no-op") for op in ops]


async def close(*recorders: Recorder) -> None:
    """Close recorders, whatever has become of them."""
    await asyncio.gather(*(recorder.aclose() for recorder in recorders))
