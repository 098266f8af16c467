"""Recorder whose log is in memory, and recovery from any part of what was recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator
from pathlib import Path
from typing import Any

from gazette_aio.client.appends.futures import OpFuture, finished_operation
from gazette_aio.consumer.recoverylog import FSM, Author, LogEncoder
from gazette_aio.consumer.recoverylog.playing.files import StagedFiles
from gazette_aio.consumer.recoverylog.playing.playback import Playback
from gazette_aio.consumer.recoverylog.playing.ranges import ranges_of
from gazette_aio.consumer.recoverylog.recording.recorded_files import RecordedFiles
from gazette_aio.protocol.errors import StoreError
from gazette_aio.protocol.recoverylog import FSMHints

LOG = "recovery/log"


class MemoryRecorder(RecordedFiles):
    """Recorder whose log is in memory.

    Args:
        directory: Directory of the files.
        fsm: History to continue.
        content: Content of the log so far.
        author: Author of what is recorded.
        log: Name of the log.
    """

    def __init__(
        self,
        directory: Path,
        fsm: FSM | None = None,
        content: bytes = b"",
        author: int = 1,
        log: str = LOG,
    ) -> None:
        self.before_hints: Any = None
        self.fsm = fsm or FSM(FSMHints(log=log))
        self._log = log
        super().__init__(LogEncoder(self.fsm, Author(author), log, len(content)), str(directory))
        self._content = bytearray(content)
        self._error: StoreError | None = None
        self._open_blocks = 0
        self.calls = [len(content)]
        """Offsets at which calls end."""
        self.appends = [len(content)]
        """Offsets at which blocks of calls end."""

    @property
    def content(self) -> bytes:
        return bytes(self._content)

    def hints(self) -> FSMHints:
        return self.fsm.build_hints(self._log)

    @contextlib.contextmanager
    def atomic(self) -> Generator[None]:
        self._check()
        self._open_blocks += 1
        try:
            yield
        finally:
            self._open_blocks -= 1
        if self._error is None and not self._open_blocks:
            self.appends.append(self._encoder.offset)

    def fail(self, error: StoreError) -> None:
        """Drop what was recorded since the latest append, and record nothing further."""
        if self._error is None:
            self._error = error
            del self._content[self.appends[-1] :]

    def _check(self) -> None:
        if self._error is not None:
            raise StoreError(f"recording has failed: {self._error}")

    def record_create(self, path: str) -> int:
        return self.record_open(path, create=True, truncate=True)

    def record_open(self, path: str | Path, **options: bool) -> int:
        fnode = self._encoder.open(self.path_of(path), **options)
        self._called()
        return fnode

    def record_write_at(self, fnode: int, data: bytes, offset: int) -> None:
        self._encoder.write(fnode, data, offset)
        self._called()

    def record_link(self, source: str, target: str) -> None:
        self._encoder.link(self.path_of(source), self.path_of(target))
        self._called()

    def record_rename(self, source: str, target: str) -> None:
        content = Path(target).read_text() if self.path_of(target) == "/IDENTITY" else None
        self._encoder.rename(self.path_of(source), self.path_of(target), content)
        self._called()

    def record_remove(self, path: str) -> None:
        self._encoder.remove(self.path_of(path))
        self._called()

    def barrier(self, wait_for: Collection[Any] = ()) -> OpFuture[Any]:
        return finished_operation()

    def _called(self) -> None:
        self._check()
        for piece in self._encoder.take():
            self._content += piece
        self.calls.append(self._encoder.offset)


def played_bytes(hints: FSMHints, end: int) -> int:
    """Return how much of a log is read by hints."""
    segments = FSM(hints).hinted_segments
    ranges = ranges_of(segments, LOG, LOG, segments[0].first_offset)
    return sum((part.end or end) - part.begin for part in ranges)


def recover(directory: Path, content: bytes, hints: FSMHints | None = None) -> tuple[FSM, Playback]:
    """Play a log into a directory, and return its history."""
    files = StagedFiles(directory)
    files.prepare(wipe=True)
    playback = Playback(hints or FSMHints(log=LOG), files)
    playback.begin(dict.fromkeys(playback.logs, len(content)))
    playback.play(playback.offset, [content[playback.offset :]])
    files.make_live(playback.fsm)
    return playback.fsm, playback
