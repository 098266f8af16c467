"""Paths of recorded files: below one directory, and in the log."""

from __future__ import annotations

import os
import posixpath
from typing import Final

from gazette_aio.protocol.errors import ConfigurationError, RecoveryError

STAGING_NAME: Final = ".fnodes"
"""Directory of files during playback, below the directory that is recovered."""

MAX_COMPONENTS: Final = 255
"""Most components of a recorded path. Those who remove directories descend a call per component."""


def clean_directory(directory: str | os.PathLike[str]) -> str:
    """Return the path of a directory to record.

    Raises:
        ConfigurationError: It isn't absolute and clean.
    """
    path = os.fspath(directory)
    if not posixpath.isabs(path) or posixpath.normpath(path) != path:
        raise ConfigurationError(f"recorder.Dir is not an absolute, clean path: {path!r}")
    return path


def path_within(directory: str, path: str | os.PathLike[str]) -> str:
    """Return the path in the log of a path below a directory: absolute, as if that was the root.

    Raises:
        ValueError: The path isn't below the directory, isn't UTF-8, or playback would refuse it.
    """
    given: str = os.fspath(path)
    clean = posixpath.normpath(given)
    root = directory.rstrip("/")
    if not clean.startswith(root + "/") or clean == "/":
        raise ValueError(f"path {given!r} isn't below {directory!r}")
    recorded = clean[len(root) :]
    recorded.encode()  # Wire: paths are UTF-8.
    try:
        check_path(recorded)
    except RecoveryError as error:
        raise ValueError(f"path {given!r} can't be recovered: {error}") from error
    return recorded


def check_path(path: str) -> None:
    """Check that a recorded path is that of a file below the directory.

    Raises:
        RecoveryError: The path isn't absolute and clean, is that of files during playback, or has
            more than `MAX_COMPONENTS`.
    """
    is_clean = path[:1] == "/" != path[1:2] and posixpath.normpath(path) == path and path != "/"
    if not is_clean or "\0" in path or path.split("/")[1] == STAGING_NAME:
        raise RecoveryError(f"unsafe path {path!r}")
    if path.count("/") > MAX_COMPONENTS:
        raise RecoveryError(f"unsafe path {path[:80]!r}...: more than {MAX_COMPONENTS} components")
