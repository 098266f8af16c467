"""Evidence, outside of the journals' directories, that journals have acknowledged content.

A journal whose directory was lost would look like a new journal, and use its offsets again. So an
empty file is created beside the directories after content of the journal is durable. The file isn't
synced itself, and never claims too much.

Content that is acknowledged before it's durable has evidence that counts until the next boot: a
power loss may lose the content, and keep the evidence. The file's name has the machine's boot.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gazette_aio.broker.host.files import opened

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_aio.broker.host.files import FileOps


def revision_of(directory: str) -> int:
    """Return the revision that the name of a journal's directory begins with, or 0."""
    revision = directory.partition("-")[0]
    return int(revision) if revision.isdecimal() else 0


class Beginnings:
    """Names of journals' directories that have acknowledged content. All methods may block.

    Args:
        path: Directory of the evidence, created with the first file.
    """

    def __init__(self, files: FileOps, path: Path) -> None:
        self._files = files
        self._path = path
        self._boot = files.boot_id()
        self._names: set[str] = set()
        self._names_of_boot: set[str] = set()
        self._unsynced: dict[str, list[Path]] = {}
        """Evidence of this boot, and of earlier ones, which doesn't count any more."""

    def __repr__(self) -> str:
        return f"<Beginnings of {len(self.names)} journals>"

    @property
    def names(self) -> frozenset[str]:
        """Names of the directories."""
        return frozenset(self._names | self._names_of_boot)

    @property
    def newest_revision(self) -> int:
        """Newest revision at which such a journal was created, or 0."""
        return max((revision_of(name) for name in self.names), default=0)

    def load(self) -> None:
        """Read the evidence.

        Raises:
            OSError: The evidence can't be read.
        """
        self._names, self._names_of_boot, self._unsynced = set(), set(), {}
        try:
            paths = list(self._path.iterdir())
        except FileNotFoundError:
            return
        for path in paths:
            name, _, boot = path.name.partition(".")
            if not boot:
                self._names.add(name)
                continue
            self._unsynced.setdefault(name, []).append(path)
            if boot == self._boot:
                self._names_of_boot.add(name)

    def has(self, directory: Path) -> bool:
        """Return whether there's evidence for the journal of a directory."""
        return directory.name in self._names or directory.name in self._names_of_boot

    def add(self, directory: Path) -> None:
        """Record that a journal has durable content. Idempotent.

        Raises:
            OSError: A file can't be created.
        """
        name = directory.name
        if name not in self._names:
            self._make(name)
            self._names.add(name)
            self._remove_unsynced(name)

    def add_of_boot(self, directory: Path) -> None:
        """Record that a journal has acknowledged content that isn't durable yet. Idempotent.

        Raises:
            OSError: A file can't be created.
        """
        name = directory.name
        if not self._boot or name in self._names or name in self._names_of_boot:
            return
        of_boot = f"{name}.{self._boot}"
        self._make(of_boot)
        self._remove_unsynced(name)
        self._names_of_boot.add(name)
        self._unsynced[name] = [self._path / of_boot]

    def remove(self, directory: Path) -> None:
        """Forget a journal. Idempotent.

        Raises:
            OSError: A file can't be removed.
        """
        name = directory.name
        self._remove_unsynced(name)
        if name in self._names:
            self._files.unlink(self._path / name)
            self._names.discard(name)

    def _make(self, name: str) -> None:
        self._files.make_directory(self._path)
        with opened(self._files, self._path / name, os.O_RDWR | os.O_CREAT):
            pass

    def _remove_unsynced(self, name: str) -> None:
        for path in self._unsynced.pop(name, ()):
            self._files.unlink(path)
        self._names_of_boot.discard(name)
