"""Recovery logs for tests: what a recorder would append, and what files it would leave."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gazette_aio.client import JournalClient
from gazette_aio.consumer.recoverylog import (
    FSM,
    Outcome,
    Player,
    Resolved,
    encode_operation,
    next_checksum,
)
from gazette_aio.protocol.recoverylog import FSMHints, RecordedOp
from gazette_aio.testing import create_journals, journal_spec

LOG = "recovery/log"
CONTENT_TYPE = "application/x-gazette-recoverylog"
AUTHOR = 1234


async def create_log(client: JournalClient, *names: str, **fields: Any) -> None:
    labels = {"content-type": CONTENT_TYPE}
    await create_journals(
        client, *(journal_spec(name, labels=labels, **fields) for name in names or (LOG,))
    )


class LogWriter:
    """Encodes operations of one author, and keeps the files that they leave.

    Args:
        offset: Offset at which the next operation is appended.
        fsm: History to continue.
        author: The author.
        log: The log.
        checksums: Whether to record checksums of content, as this package's recorder does.
    """

    def __init__(
        self,
        offset: int = 0,
        *,
        fsm: FSM | None = None,
        author: int = AUTHOR,
        log: str = LOG,
        checksums: bool = True,
    ) -> None:
        self.fsm = fsm or FSM(FSMHints(log=log))
        self.author = author
        self.log = log
        self.offset = offset
        self.checksums = checksums
        self.files: dict[int, bytearray] = {}
        self.content = b""
        """All that was encoded."""
        self.ops: list[tuple[int, int]] = []
        """Ranges of operations, in `content`."""

    def op(self, content: bytes = b"", **fields: Any) -> bytes:
        op = RecordedOp(
            seq_no=self.fsm.next_seq_no,
            checksum=self.fsm.next_checksum,
            author=self.author,
            **fields,
        )
        if content and self.checksums:
            op.content_checksum = next_checksum(0, content)
        payload, frame = encode_operation(op)
        encoded = frame + content
        op.log = self.log
        op.first_offset, op.last_offset = self.offset, self.offset + len(encoded)
        assert self.fsm.apply(op, payload) is Outcome.APPLIED
        self.ops.append((len(self.content), len(self.content) + len(encoded)))
        self.content += encoded
        self.offset += len(encoded)
        return encoded

    def create(self, path: str) -> bytes:
        self.files[self.fsm.next_seq_no] = bytearray()
        return self.op(create={"path": path})

    def write(self, path: str, content: bytes, offset: int | None = None) -> bytes:
        fnode = self.fsm.links[path]
        file = self.files.setdefault(fnode, bytearray())
        begin = len(file) if offset is None else offset
        file.extend(bytes(max(0, begin + len(content) - len(file))))
        file[begin : begin + len(content)] = content
        return self.op(content, write={"fnode": fnode, "offset": begin, "length": len(content)})

    def link(self, path: str, target: str) -> bytes:
        return self.op(link={"fnode": self.fsm.links[path], "path": target})

    def unlink(self, path: str) -> bytes:
        return self.op(unlink={"fnode": self.fsm.links[path], "path": path})

    def rename(self, path: str, target: str) -> bytes:
        frames = self.unlink(target) if target in self.fsm.links else b""
        return frames + self.link(path, target) + self.unlink(path)

    def set_property(self, path: str, content: str) -> bytes:
        return self.op(property={"path": path, "content": content})

    @property
    def hints(self) -> FSMHints:
        return self.fsm.build_hints(self.log)

    def expected(self) -> dict[str, bytes]:
        """Return the files by path."""
        files = {path: bytes(self.files[fnode]) for path, fnode in self.fsm.links.items()}
        return files | {path: text.encode() for path, text in self.fsm.properties.items()}


def files_of(directory: Path) -> dict[str, bytes]:
    """Return the files below a directory by path."""
    return {
        f"/{path.relative_to(directory)}": path.read_bytes()
        for path in directory.rglob("*")
        if not path.is_dir()
    }


def is_there(path: Path) -> bool:
    return path.exists()


def described(directory: Path) -> list[str]:
    """Return descriptions of this process's open files below a directory."""
    found = [os.path.realpath(each) for each in Path("/dev/fd").iterdir()]
    return [each for each in found if str(directory) in each]


async def recover(
    client: JournalClient, directory: Path, hints: FSMHints | None = None, **options: Any
) -> Resolved:
    """Play a log to its present end."""
    player = Player(**options)
    player.finish_at_write_head()
    resolved = await player.play(hints or FSMHints(log=LOG), directory, client)
    await player.done
    assert player.resolved is resolved
    return resolved


async def written(client: JournalClient) -> LogWriter:
    """Write a log with one file, and return its writer."""
    await create_log(client)
    writer = LogWriter()
    writer.create("/file")
    writer.write("/file", b"hello")
    await client.append(LOG, writer.content)
    return writer
