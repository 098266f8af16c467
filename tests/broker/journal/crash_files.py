"""A disk whose past can be asked what it would have held after a crash at any moment.

`RecordingFiles` notes every operation which changes the disk. `Disk` replays the first few of them,
and then writes out what a crash leaves: all of it (a killed process), only what was synced (a power
loss), or any mix of the two which a file system may choose.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path

from gazette_aio.broker.host.files import FileOps


class Loss(Enum):
    """What a crash takes of that which wasn't synced."""

    NOTHING = "nothing"
    ALL = "all"
    CONTENT = "content"
    NAMES = "names"
    ANY = "any"


class RecordingFiles(FileOps):
    """Does all operations, and notes those which change the disk below `root`."""

    def __init__(self, root: Path) -> None:
        self.steps: list[Callable[[Disk], None]] = []
        self.labels: list[str] = []
        self._root = root
        self._paths: dict[int, str] = {}
        self._count = 0
        self._inodes: dict[str, int] = {}
        self._open: dict[int, int] = {}
        self._lock = threading.Lock()
        self.fail_at = -1
        """Which operation fails, by the number of steps before it."""
        self.read_only_at = -1
        """From when on the disk can't be changed any more, by the number of steps before that."""
        self.failure = errno.EIO

    @property
    def open_files(self) -> int:
        """Number of descriptors which aren't closed."""
        return len(self._open)

    def boot_id(self) -> str:
        return "before the crash"

    def _fail(self) -> None:
        if 0 <= self.read_only_at <= len(self.steps):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if 0 <= self.fail_at <= len(self.steps):
            self.fail_at = -1
            raise OSError(self.failure, os.strerror(self.failure))

    def _note(self, label: str, step: Callable[[Disk], None]) -> None:
        self.labels.append(label)
        self.steps.append(step)

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def open(self, path: Path, flags: int) -> int:
        with self._lock:
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self._fail()
            name = self._name(path)
            fresh = not path.exists()
            descriptor = super().open(path, flags)
            if fresh:
                self._count += 1
                inode = self._inodes[name] = self._count
                self._note(f"create {name}", lambda disk: disk.create(name, inode))
            inode = self._open[descriptor] = self._inodes[name]
            if flags & os.O_TRUNC and not fresh:
                self._note(f"truncate {name}", lambda disk: disk.truncate(inode, 0))
            return descriptor

    def close(self, descriptor: int) -> None:
        with self._lock:
            del self._open[descriptor]  # A descriptor which isn't open is an error of the caller.
            super().close(descriptor)

    def duplicate(self, descriptor: int) -> int:
        with self._lock:
            copy = super().duplicate(descriptor)
            self._open[copy] = self._open[descriptor]
            return copy

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        with self._lock:
            self._fail()
            content, inode = bytes(data), self._open[descriptor]
            half = len(content) // 2
            self._note(f"half write {inode}", lambda d: d.write(inode, content[:half], offset))
            self._note(f"write {inode}", lambda d: d.write(inode, content, offset))
            super().pwrite(descriptor, data, offset)

    def truncate(self, descriptor: int, length: int) -> None:
        with self._lock:
            self._fail()
            inode = self._open[descriptor]
            super().truncate(descriptor, length)
            self._note(f"truncate {inode}", lambda disk: disk.truncate(inode, length))

    def datasync(self, descriptor: int) -> None:
        with self._lock:
            self._fail()
            inode = self._open[descriptor]
            self._note(f"sync {inode}", lambda disk: disk.sync(inode))

    def sync_directory(self, path: Path) -> None:
        with self._lock:
            self._fail()
            if not path.is_dir():
                raise FileNotFoundError(path)
            name = self._name(path) if path != self._root else "."
            self._note(f"sync directory {name}", lambda disk: disk.sync_directory(name))

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            self._fail()
            old, new = self._name(source), self._name(target)
            super().rename(source, target)
            self._inodes[new] = self._inodes.pop(old)
            self._note(f"rename {new}", lambda disk: disk.rename(old, new))

    def unlink(self, path: Path) -> None:
        with self._lock:
            self._fail()
            name = self._name(path)
            if path.exists():
                super().unlink(path)
                self._note(f"unlink {name}", lambda disk: disk.unlink(name))

    def make_directory(self, path: Path) -> None:
        with self._lock:
            self._fail()
            parts = path.relative_to(self._root).parts
            for end in range(1, len(parts) + 1):
                name = "/".join(parts[:end])
                if not (self._root / name).exists():
                    self._note(f"mkdir {name}", partial(Disk.make_directory, name=name))
            super().make_directory(path)

    def remove_tree(self, path: Path) -> None:
        with self._lock:
            for found in sorted(path.rglob("*"), reverse=True):
                name = self._name(found)
                self._note(f"unlink {name}", partial(Disk.unlink, name=name))
            name = self._name(path)
            if path.exists():
                self._note(f"unlink {name}", lambda disk: disk.unlink(name))
            super().remove_tree(path)


class Disk:
    """Files and directories, each with what's synced of it, below a root which exists."""

    def __init__(self) -> None:
        self._content: dict[int, bytearray] = {}
        self._synced: dict[int, bytes] = {}
        # Entries of directories: the number of a file, or None for a directory.
        self._names: dict[str, int | None] = {}
        self._synced_names: dict[str, int | None] = {}

    def create(self, name: str, inode: int) -> None:
        self._content[inode] = bytearray()
        self._names[name] = inode

    def write(self, inode: int, data: bytes, offset: int) -> None:
        content = self._content[inode]
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(data)] = data

    def truncate(self, inode: int, length: int) -> None:
        content = self._content[inode]
        content.extend(bytes(max(0, length - len(content))))
        del content[length:]

    def sync(self, inode: int) -> None:
        self._synced[inode] = bytes(self._content[inode])

    def make_directory(self, name: str) -> None:
        self._names[name] = None

    def unlink(self, name: str) -> None:
        self._names.pop(name, None)

    def rename(self, old: str, new: str) -> None:
        self._names[new] = self._names.pop(old)

    def sync_directory(self, name: str) -> None:
        def within(entry: str) -> bool:
            return (entry.rpartition("/")[0] or ".") == name

        kept = {k: v for k, v in self._synced_names.items() if not within(k)}
        kept.update({k: v for k, v in self._names.items() if within(k)})
        self._synced_names = kept

    def after(self, loss: Loss, rng: random.Random) -> dict[str, bytes | None]:
        """Return what a crash leaves: content of files, and None for directories, by their names."""
        left: dict[str, bytes | None] = {}
        for name in sorted({*self._names, *self._synced_names}):
            parent = name.rpartition("/")[0]
            entries = self._entries(loss, rng)
            if name not in entries or (parent and parent not in left):
                continue
            inode = entries[name]
            left[name] = None if inode is None else self._data(inode, loss, rng)
        return left

    def _entries(self, loss: Loss, rng: random.Random) -> dict[str, int | None]:
        if loss is Loss.ANY:
            return self._names if rng.random() < 0.5 else self._synced_names
        return self._names if loss in (Loss.NOTHING, Loss.CONTENT) else self._synced_names

    def _data(self, inode: int, loss: Loss, rng: random.Random) -> bytes:
        written, synced = bytes(self._content[inode]), self._synced.get(inode, b"")
        if loss is Loss.ANY:
            choices = [written, synced]
            if written.startswith(synced):
                # A part was written back; or the length was, and not the content.
                choices.append(written[: rng.randint(len(synced), len(written))])
                choices.append(synced.ljust(len(written), b"\0"))
            return rng.choice(choices)
        return written if loss in (Loss.NOTHING, Loss.NAMES) else synced


def write_tree(target: Path, tree: dict[str, bytes | None]) -> None:
    """Replace a directory by the given files and directories."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for name, content in tree.items():
        if content is None:
            (target / name).mkdir()
        else:
            (target / name).write_bytes(content)
