"""Data directory of a broker: its lock, its identity, and its layout."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import gazette_aio.protocol as pb
from gazette_aio.aio.file_lock import FileLock, holder_of
from gazette_aio.broker.host.files import FileOps, make_durable_directory, write_durably
from gazette_aio.broker.host.heads import Heads

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_aio.broker.keyspace.keyspace import JournalItem

_logger = logging.getLogger(__name__)

_FORMAT = 2
_EARLIER_FORMATS = (1,)
IDENTITY_NAME = "CLUSTER"
ORPHAN_SUFFIX = ".orphan"
"""Suffix of directories that were put aside."""


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """Identity of a key space in headers."""

    cluster_id: int
    member_id: int
    raft_term: int
    """Incremented by each start."""
    suffix: str
    """Suffix of the broker's process id, unless the options name one."""


class DataDirectory:
    """A locked directory. All methods block.

    Args:
        path: The directory, created if it's missing.
        sync: Whether writes are made durable before they return.
    """

    def __init__(self, files: FileOps, path: Path, *, sync: bool) -> None:
        self.path = path
        self.meta: Path = path / "meta"
        self.journals: Path = path / "journals"
        self.heads: Heads = Heads(files, path / "heads")
        self._files = files
        self._sync = sync
        self._lock = FileLock(files.close)

    def open(self) -> ClusterIdentity:
        """Lock the directory and return its identity, which is new in an empty directory.

        Raises:
            ConfigurationError: Another broker uses it, it's of an earlier form, or it can't be
                used.
            StoreError: The file of heads is damaged or missing.
        """
        try:
            make_durable_directory(self._files, self.path, sync=self._sync)
        except OSError as error:
            raise self._unusable(error) from error
        self.lock()
        try:
            # Both names become durable with the name of the identity.
            self._files.make_directory(self.journals)
            self._files.make_directory(self.meta)
            if not self.load_heads():
                self.heads.create({}, sync=self._sync)
            elif self._sync:
                self.heads.sync()  # A run without syncs may have made the file.
            identity = self._next_identity()
        except OSError as error:
            self.close()
            raise self._unusable(error) from error
        except BaseException:
            self.close()
            raise
        return identity

    def lock(self) -> None:
        """Lock the directory, and change nothing else.

        Raises:
            ConfigurationError: Another broker uses it, it's of an earlier form, or it can't be
                used.
        """
        path = self.path / "LOCK"
        try:
            self._lock.acquire(lambda: self._files.open(path, os.O_RDWR | os.O_CREAT))
            self._lock.sign()
            self._refuse_earlier_forms()
        except BlockingIOError:
            raise pb.ConfigurationError(
                f"data directory {self.path} is in use by another broker: {holder_of(path)}"
            ) from None
        except OSError as error:
            self.close()
            raise self._unusable(error) from error
        except pb.ConfigurationError:
            self.close()
            raise

    def _refuse_earlier_forms(self) -> None:
        try:
            form = self._load_identity().get("format")
        except (FileNotFoundError, ValueError, TypeError, RecursionError):
            return
        if form in _EARLIER_FORMATS:
            raise pb.ConfigurationError(
                f"data directory {self.path} is of an earlier form ({form}; expected {_FORMAT}): "
                "use an empty directory, or the version of gazette-aio that made it"
            )

    def _load_identity(self) -> dict[str, Any]:
        loaded = json.loads(self._files.read_file(self.path / IDENTITY_NAME))
        if not isinstance(loaded, dict):
            raise TypeError("not an object")
        return cast("dict[str, Any]", loaded)

    def load_heads(self) -> bool:
        """Read the file of heads; return False if there's none, nor anything that needs it.

        Raises:
            StoreError: The file is damaged or missing.
            OSError: It can't be read.
        """
        if self.heads.load():
            return True
        if any(self.meta.iterdir()) or any(self.journals.iterdir()):
            raise pb.StoreError(
                f"{self.heads.path} is damaged or missing, which shows what was acknowledged: "
                f"restore it from a backup, or run `gazette-aio broker repair {self.path}`"
            )
        return False

    def _unusable(self, error: OSError) -> pb.ConfigurationError:
        return pb.ConfigurationError(f"data directory {self.path}: {error.strerror}")

    def close(self) -> None:
        """Release the lock. Idempotent."""
        self.heads.close()
        self._lock.release()

    def journal(self, item: JournalItem) -> Path:
        """Return the directory of a journal's life.

        The directory's name is a revision and a digest. So no journal name leads elsewhere, and a
        recreated journal doesn't find the files of its predecessor.
        """
        digest = hashlib.sha1(item.name.encode(), usedforsecurity=False).hexdigest()
        return self.journals / f"{item.create_revision}-{digest[:16]}"

    def put_aside(self, directory: Path) -> Path:
        """Rename the directory of a journal that the key space doesn't know; return its path.

        Raises:
            OSError: The directory can't be renamed.
        """
        aside = directory.with_name(directory.name + ORPHAN_SUFFIX)
        number = 1
        while aside.exists():  # Revisions may come again after a repair.
            number += 1
            aside = directory.with_name(f"{directory.name}.{number}{ORPHAN_SUFFIX}")
        self.heads.remove(directory.name)  # Another journal may get the same directory.
        self._files.rename(directory, aside)
        return aside

    def remove(self, directory: Path) -> None:
        """Remove the directory of a deleted journal, as far as possible."""
        with contextlib.suppress(OSError):
            self.heads.remove(directory.name)
        self._files.remove_tree(directory)

    def identity(self) -> ClusterIdentity | None:
        """Return the stored identity, or None if there's none.

        Raises:
            ConfigurationError: The identity is damaged, or of a later version.
        """
        path = self.path / IDENTITY_NAME
        try:
            known = self._load_identity()
            if known.pop("checksum", None) != _checksum(known):
                raise ValueError("the checksum differs: the file is damaged")
            if known.get("format") != _FORMAT:
                raise ValueError(f"unknown format {known.get('format')}")
            return ClusterIdentity(
                int(known["cluster_id"]),
                int(known["member_id"]),
                int(known["raft_term"]),
                str(known["suffix"]),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise pb.ConfigurationError(f"{path}: {error}") from error

    def _next_identity(self) -> ClusterIdentity:
        identity = self.identity()
        if identity is None:
            if any(self.meta.iterdir()):
                text = "%s is missing beside a key space, which gets another cluster ID"
                _logger.warning(text, self.path / IDENTITY_NAME)
            identity = ClusterIdentity(
                secrets.randbits(63) | 1,
                secrets.randbits(63) | 1,
                1,
                f"broker-{secrets.token_hex(4)}",
            )
        identity = replace(identity, raft_term=identity.raft_term + 1)
        content: dict[str, Any] = {
            "format": _FORMAT,
            "cluster_id": identity.cluster_id,
            "member_id": identity.member_id,
            "raft_term": identity.raft_term,
            "suffix": identity.suffix,
        }
        content["checksum"] = _checksum(content)
        path = self.path / IDENTITY_NAME
        write_durably(self._files, path, json.dumps(content).encode(), sync=self._sync)
        return identity


def revision_of(directory: str) -> int:
    """Return the revision that the name of a journal's directory begins with, or 0."""
    revision = directory.partition("-")[0]
    return int(revision) if revision.isdecimal() else 0


def _checksum(content: dict[str, Any]) -> int:
    """Return the CRC-32 of an object's canonical form."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
