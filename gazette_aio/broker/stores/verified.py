"""Memory of the verified files of a store."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

_MAX_FILES: Final = 1 << 14


class VerifiedFiles:
    """The latest files whose content had the sum in their name, by path and version.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._files: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<VerifiedFiles {len(self._files)}>"

    def add(self, path: str, version: str) -> None:
        """Add a version of a file. An empty version is ignored."""
        if not version:
            return
        with self._lock:
            self._files[path, version] = None
            self._files.move_to_end((path, version))
            if len(self._files) > _MAX_FILES:
                self._files.popitem(last=False)

    def has(self, path: str, version: str) -> bool:
        """Return whether this version of a file was verified."""
        return (path, version) in self._files
