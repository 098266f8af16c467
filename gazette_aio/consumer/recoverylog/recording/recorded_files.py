"""Files, paths and properties that a recorder has recorded."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gazette_aio.consumer.recoverylog.paths import path_within

if TYPE_CHECKING:
    import os

    from gazette_aio.consumer.recoverylog.live_nodes import LiveNodes
    from gazette_aio.consumer.recoverylog.recording.encoder import LogEncoder


class RecordedFiles:
    """View of a history. It may be used by any thread.

    Args:
        encoder: Encoder of the history.
        directory: Directory of the files, an absolute path.
    """

    def __init__(self, encoder: LogEncoder, directory: str) -> None:
        self.directory = directory
        """Directory of the files, an absolute path."""
        self._encoder = encoder
        self._lock = threading.RLock()

    def links(self) -> dict[str, int]:
        """Return the fnodes of all files by path in the log, such as `/state.json`."""
        with self._lock:
            return dict(self._encoder.fsm.links)

    def live_nodes(self) -> LiveNodes:
        """Return a snapshot of all files, of which hints can be built."""
        with self._lock:
            return self._encoder.fsm.snapshot()

    def properties(self) -> dict[str, str]:
        """Return the contents of properties by their paths in the log, such as `/IDENTITY`."""
        with self._lock:
            return dict(self._encoder.fsm.properties)

    def fnode_of(self, path: str | os.PathLike[str]) -> int | None:
        """Return the fnode of a path as of `path_of()`, or None if no file has it."""
        recorded = self.path_of(path)
        with self._lock:
            return self._encoder.fsm.links.get(recorded)

    def age_bytes(self, fnode: int) -> int:
        """Return the length of the log since a file's first operation; see `LogEncoder`."""
        with self._lock:
            return self._encoder.age_bytes(fnode)

    def is_live(self, fnode: int) -> bool:
        """Return whether a file has a path."""
        with self._lock:
            return fnode in self._encoder.fsm.live_nodes

    def path_of(self, path: str | os.PathLike[str]) -> str:
        """Return the path in the log of a path below the directory.

        Raises:
            ValueError: It's elsewhere, or isn't UTF-8.
        """
        return path_within(self.directory, path)
