"""Evidence, outside of the directories of journals, of which of them have acknowledged content.

A journal whose directory was lost would look like a new one, and give its offsets again. So an
empty file is made beside these directories once something of a journal is durable. As it's made
after that, and isn't synced itself, it never claims too much.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gazette_aio.broker.host.files import opened

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_aio.broker.host.files import FileOps


class Beginnings:
    """Names of journals' directories that have acknowledged content. All methods may block.

    Args:
        path: Directory of the evidence; made with the first of it.
    """

    def __init__(self, files: FileOps, path: Path) -> None:
        self._files = files
        self._path = path
        self._names: set[str] = set()

    def __repr__(self) -> str:
        return f"<Beginnings of {len(self._names)} journals>"

    @property
    def names(self) -> frozenset[str]:
        """Names of the directories."""
        return frozenset(self._names)

    def load(self) -> None:
        """Read which journals have begun.

        Raises:
            OSError: If it can't be read.
        """
        try:
            self._names = {path.name for path in self._path.iterdir()}
        except FileNotFoundError:
            self._names = set()

    def has(self, directory: Path) -> bool:
        """Return whether the journal of a directory has begun."""
        return directory.name in self._names

    def add(self, directory: Path) -> None:
        """Note that a journal has begun. Idempotent.

        Raises:
            OSError: If that fails.
        """
        if directory.name in self._names:
            return
        self._files.make_directory(self._path)
        with opened(self._files, self._path / directory.name, os.O_RDWR | os.O_CREAT):
            self._names.add(directory.name)

    def remove(self, directory: Path) -> None:
        """Forget a journal. Idempotent.

        Raises:
            OSError: If that fails.
        """
        if directory.name in self._names:
            self._files.unlink(self._path / directory.name)
            self._names.discard(directory.name)
