"""File operations which fail on demand, or lose what wasn't synced."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from gazette_aio.broker.host.files import FileOps


class FaultyFiles(FileOps):
    """Fails operations on files whose names contain a given part."""

    def __init__(self) -> None:
        self._faults: list[tuple[str, str, int]] = []
        self._once: tuple[str, str, int] | None = None
        self._paths: dict[int, Path] = {}
        self.failed = 0

    def fail(self, operation: str, part: str, error: int = errno.ENOSPC) -> None:
        """Let `operation` fail from now on for files whose names contain `part`."""
        self._faults.append((operation, part, error))

    def fail_once(self, operation: str, part: str, error: int) -> None:
        """Let `operation` fail the next time."""
        self._once = (operation, part, error)

    def heal(self) -> None:
        """Let all operations succeed again."""
        self._faults.clear()

    def _check(self, operation: str, path: Path) -> None:
        for fault in [*self._faults, *([self._once] if self._once else [])]:
            failing, part, error = fault
            if failing == operation and part in str(path):
                self._once = None
                self.failed += 1
                raise OSError(error, os.strerror(error))

    def open(self, path: Path, flags: int) -> int:
        self._check("open", path)
        descriptor = super().open(path, flags)
        self._paths[descriptor] = path
        return descriptor

    def duplicate(self, descriptor: int) -> int:
        copy = super().duplicate(descriptor)
        self._paths[copy] = self._paths[descriptor]
        return copy

    def pread(self, descriptor: int, length: int, offset: int) -> bytes:
        self._check("pread", self._paths[descriptor])
        return super().pread(descriptor, length, offset)

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        try:
            self._check("pwrite", self._paths[descriptor])
        except OSError:
            # A full disk takes a part of the write.
            super().pwrite(descriptor, memoryview(data)[: len(data) // 2], offset)
            raise
        super().pwrite(descriptor, data, offset)

    def truncate(self, descriptor: int, length: int) -> None:
        self._check("truncate", self._paths[descriptor])
        super().truncate(descriptor, length)

    def datasync(self, descriptor: int) -> None:
        self._check("datasync", self._paths[descriptor])
        super().datasync(descriptor)

    def make_directory(self, path: Path) -> None:
        self._check("make_directory", path)
        super().make_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self._check("rename", target)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._check("unlink", path)
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        self._check("sync_directory", path)
        super().sync_directory(path)


class BootedFiles(FileOps):
    """Files of a machine as of one of its starts."""

    def __init__(self, boot: str) -> None:
        self._boot = boot

    def boot_id(self) -> str:
        return self._boot


class LosingFiles(FileOps):
    """Remembers what a power loss would leave: synced content under synced names."""

    def __init__(self) -> None:
        self._paths: dict[int, Path] = {}
        self._durable: dict[Path, bytes] = {}
        self._names: set[Path] = set()
        self.frozen = False
        """Whether later syncs come too late."""
        self._lock = threading.Lock()

    def boot_id(self) -> str:
        return "before the power loss"

    def open(self, path: Path, flags: int) -> int:
        descriptor = super().open(path, flags)
        self._paths[descriptor] = path
        return descriptor

    def duplicate(self, descriptor: int) -> int:
        copy = super().duplicate(descriptor)
        self._paths[copy] = self._paths[descriptor]
        return copy

    def datasync(self, descriptor: int) -> None:
        path = self._paths[descriptor]
        content = path.read_bytes()
        with self._lock:
            if self.frozen:
                return
            self._durable[path] = content

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        with self._lock:
            if source in self._durable and not self.frozen:
                self._durable[target] = self._durable.pop(source)

    def sync_directory(self, path: Path) -> None:
        with self._lock:
            if not self.frozen:
                self._names.update(path.iterdir())

    def lose_power(self, root: Path) -> None:
        """Reduce a copy of the directory at `root` to what is durable. `root` itself is."""
        for path in sorted(root.rglob("*"), reverse=True):
            if path.is_dir():
                if path not in self._names and path.parent != root:
                    path.rmdir()
            elif path.name == "LOCK":
                continue
            elif path in self._names:
                path.write_bytes(self._durable.get(path, b""))
            else:
                path.unlink()
