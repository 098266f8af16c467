"""Files of spools, each call of which passes a seam in its thread."""

from __future__ import annotations

import io
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Seam = Callable[[str, int], int | None]
"""Gets the name of a call, and its size. May wait, raise, or return a smaller size."""


def unlimited(_: str, __: int) -> None:
    """Let each call be made."""


def full_disk(*_: object) -> int | None:
    """Fail each call."""
    raise OSError(28, "No space left on device")


class SpoolFile(io.FileIO):
    """A real temporary file, which notes if two threads use it at a time."""

    def __init__(self, files: SpoolFiles, directory: str | None) -> None:
        descriptor, path = tempfile.mkstemp(dir=directory)
        Path(path).unlink()
        super().__init__(descriptor, "w+b")
        self._files = files
        self._in_use = threading.Lock()

    def _enter(self, name: str, size: int = 0) -> int:
        if not self._in_use.acquire(blocking=False):
            self._files.misuses.append(name)
            raise OSError("misused")
        try:
            limit = self._files.enter(name, size)
        except BaseException:
            self._in_use.release()
            raise
        return size if limit is None else limit

    def write(self, data: Any, /) -> int:
        limit = self._enter("write", len(data))
        try:
            return super().write(data[:limit])
        finally:
            self._in_use.release()

    def read(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        limit = self._enter("read", size)
        try:
            return super().read(limit)
        finally:
            self._in_use.release()

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._enter("seek")
        try:
            return super().seek(offset, whence)
        finally:
            self._in_use.release()

    def close(self) -> None:
        if self.closed:
            return
        try:
            self._enter("close")
            self._in_use.release()
        finally:
            super().close()


class SpoolFiles:
    """The files of all spools.

    Args:
        monkeypatch: Has spools open these files.
        seam: Called before each call of a file, in its thread.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seam: Seam = unlimited) -> None:
        self.seam = seam
        self.files: list[SpoolFile] = []
        self.calls: list[str] = []
        self.misuses: list[str] = []
        monkeypatch.setattr(tempfile, "TemporaryFile", self._open)

    @property
    def all_closed(self) -> bool:
        return all(file.closed for file in self.files)

    def enter(self, name: str, size: int) -> int | None:
        self.calls.append(name)
        return self.seam(name, size)

    def _open(
        self,
        mode: str,
        *,
        buffering: int,
        prefix: str,
        dir: str | None,  # noqa: A002 - tempfile's name.
    ) -> SpoolFile:
        assert (mode, buffering, prefix) == ("w+b", 0, "gazette-append")
        self.enter("open", 0)
        self.files.append(SpoolFile(self, dir))
        return self.files[-1]
