"""Disk below SQLite of apsw, of which an operation fails."""

from __future__ import annotations

from typing import Any

import apsw

_BASE = "unix"
ERRORS = (apsw.FullError("injected: disk full"), apsw.IOError("injected: I/O error"))


class FaultyDisk(apsw.VFS):
    """Default VFS of apsw until it's closed."""

    is_synced = True
    """Whether files are synced, which only matters if the machine is killed."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        """Calls since `fail()`, each with the name of its file."""
        self.failed = 0
        """Number of them that failed."""
        self._operation = ""
        self._number = self._lasts = 0
        super().__init__("faulty", _BASE, makedefault=True)

    def fail(self, operation: str, number: int = 1, *, lasts: int = 1) -> None:
        """Have calls of an operation such as `xTruncate` fail.

        Args:
            operation: The operation.
            number: Number of the first call that fails, from one; zero for none.
            lasts: Number of calls that fail.
        """
        self.calls.clear()
        self.failed = 0
        self._operation, self._number, self._lasts = operation, number, lasts

    def heal(self) -> None:
        """Have nothing fail, and keep the calls."""
        self._operation = ""

    def close(self) -> None:
        apsw.set_default_vfs(_BASE)
        self.unregister()

    def check(self, operation: str, name: str) -> None:
        if operation != self._operation:
            return
        self.calls.append(name.rpartition("/")[2])
        if self._number <= len(self.calls) < self._number + self._lasts:
            self.failed += 1
            raise ERRORS[self._number % 2]

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802 - apsw's.
        self.check("xDelete", filename)
        super().xDelete(filename, syncdir)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name.
        path = name.filename() if isinstance(name, apsw.URIFilename) else name or ""
        self.check("xOpen", path)
        return _File(self, name, path, flags)


class _File(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: Any, path: str, flags: list[int]) -> None:
        super().__init__(_BASE, name, flags)
        self._disk = disk
        self._path = path

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802 - SQLite's name.
        self._disk.check("xRead", self._path)
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's name.
        self._disk.check("xWrite", self._path)
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - SQLite's name.
        self._disk.check("xTruncate", self._path)
        super().xTruncate(newsize)

    def xClose(self) -> None:  # noqa: N802 - SQLite's name.
        super().xClose()
        self._disk.check("xClose", self._path)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name.
        self._disk.check("xSync", self._path)
        if self._disk.is_synced:
            super().xSync(flags)

    def xFileSize(self) -> int:  # noqa: N802 - SQLite's name.
        self._disk.check("xFileSize", self._path)
        return super().xFileSize()
