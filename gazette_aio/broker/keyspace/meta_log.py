"""Log of the key space: a snapshot, and the transactions after it.

A log is named by the revision of its snapshot. A snapshot begins a log as soon as the present one
is long, and at the end of a broker. The log before it is kept, in case the snapshot is damaged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import DecodeError

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import in_thread_slices
from gazette_aio.broker.host.files import FileOps, make_durable_directory, opened, write_durably
from gazette_aio.broker.host.heads import Head
from gazette_aio.broker.host.log import (
    RecordLog,
    encode_record,
    find_tagged_record,
    scan_records,
)
from gazette_aio.broker.keyspace.keyspace import JournalItem, KeySpace, KeySpaceTransaction

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_aio.broker.host.heads import Heads

_logger = logging.getLogger(__name__)

SNAPSHOT_BYTES = 1 << 20
"""Length of the transactions of a log from which a snapshot is due."""

HEAD_NAME = "meta"
"""Name of the key space's head."""
_HEADER = struct.Struct("<2sq")
_SNAPSHOT_TAG, _TRANSACTION_TAG = b"js", b"jt"


def encode_transaction(transaction: KeySpaceTransaction) -> bytes:
    """Return the payload of a transaction's record."""
    request = pb.ApplyRequest()
    for spec in transaction.puts:
        request.changes.add(upsert=spec)
    for name in transaction.deletes:
        request.changes.add(delete=name)
    return _HEADER.pack(_TRANSACTION_TAG, transaction.revision) + request.SerializeToString()


def decode_transaction(payload: bytes) -> KeySpaceTransaction:
    """Return the transaction of a payload.

    Raises:
        ValueError: The payload isn't a transaction.
    """
    revision, data = _decode(payload, _TRANSACTION_TAG)
    try:
        changes = pb.ApplyRequest.FromString(data).changes
    except DecodeError as error:
        raise ValueError(str(error)) from None
    puts = tuple(change.upsert for change in changes if change.HasField("upsert"))
    deletes = tuple(change.delete for change in changes if not change.HasField("upsert"))
    return KeySpaceTransaction(revision, puts, deletes)


def encode_snapshot(space: KeySpace) -> bytes:
    """Return the payload of a snapshot, made in slices."""
    parts = [_HEADER.pack(_SNAPSHOT_TAG, space.revision)]
    for item in in_thread_slices(space):
        # Messages of one journal each are a message of all journals.
        listed = pb.ListResponse()
        listed.journals.add(
            spec=item.spec,
            mod_revision=item.mod_revision,
            create_revision=item.create_revision,
        )
        parts.append(listed.SerializeToString())
    return b"".join(parts)


def decode_snapshot(payload: bytes) -> KeySpace:
    """Return the key space of a snapshot.

    Raises:
        ValueError: The payload isn't a snapshot.
    """
    revision, data = _decode(payload, _SNAPSHOT_TAG)
    try:
        journals = pb.ListResponse.FromString(data).journals
    except DecodeError as error:
        raise ValueError(str(error)) from None
    space = KeySpace()
    # A part of a message keeps the whole message in memory.
    items = [JournalItem(deepcopy(j.spec), j.create_revision, j.mod_revision) for j in journals]
    space.restore(items, revision)
    return space


def _decode(payload: bytes, wanted: bytes) -> tuple[int, bytes]:
    if payload[:2] != wanted or len(payload) < _HEADER.size:
        raise ValueError("not of this kind")
    _, revision = _HEADER.unpack_from(payload)
    return revision, payload[_HEADER.size :]


class _Replayed(NamedTuple):
    """Sound part of a log."""

    space: KeySpace
    length: int
    """Bytes of the sound part."""
    unsound: str
    """Why the rest isn't sound; empty if there's none."""
    is_torn: bool
    """Whether a crash can have left the rest: it isn't a whole record."""


class MetaLog:
    """Log of the key space in a directory. All methods block.

    Args:
        directory: Directory of the log.
        heads: Heads, which have the newest acknowledged revision.
        sync: Whether writes are made durable before they return.
    """

    def __init__(self, files: FileOps, directory: Path, heads: Heads, *, sync: bool) -> None:
        self._files = files
        self._directory = directory
        self._heads = heads
        self._sync = sync
        self._use(0, 0)

    def __repr__(self) -> str:
        return f"<MetaLog {self._log!r}>"

    @property
    def has_failed(self) -> bool:
        """Whether it's unknown what is on disk: a restart has to read it before more is written."""
        return self._log.has_failed

    @property
    def snapshot_is_due(self) -> bool:
        """Whether the log is so long that a snapshot is due."""
        return self._log.length >= self._snapshot_due_at

    @property
    def acknowledged(self) -> int:
        """Newest revision that is known to be acknowledged."""
        head = self._heads.get(HEAD_NAME)
        return 1 if head is None else head.end

    @property
    def paths(self) -> list[Path]:
        """All logs. The last one is in use."""
        return sorted(self._directory.glob(f"{'[0-9a-f]' * 16}.log"))

    def load(self) -> KeySpace:
        """Read the key space, and open the log for further transactions.

        Raises:
            StoreError: Acknowledged transactions are damaged or missing; the text names file and
                offset.
            OSError: The log can't be read, or made durable.
        """
        make_durable_directory(self._files, self._directory, sync=self._sync)
        space, length = self.read()
        if paths := self.paths:
            with opened(self._files, paths[-1], os.O_RDWR) as descriptor:
                if self._files.size(descriptor) > length:
                    extra = {"path": str(paths[-1]), "offset": length}
                    _logger.info("cut a torn transaction", extra=extra)
                    self._files.truncate(descriptor, length)
                if self._sync:
                    # Transactions may be in the page cache only, and clients will see them.
                    self._files.datasync(descriptor)
                    self._files.sync_directory(self._directory)
            self._use(_revision(paths[-1]), length)
            self._record(space.revision)  # The head may be lost, or out of date.
        else:
            self._begin(encode_snapshot(space), space.revision)
        self._log.open()
        return space

    def read(self) -> tuple[KeySpace, int]:
        """Read the key space, and change no file; return it, and the log's sound length.

        Raises:
            StoreError: See `load()`.
        """
        space, length, where = KeySpace(), 0, str(self._directory)
        if paths := self.paths:
            where = str(paths[-1])
            replayed = self._replay(paths[-1])
            if replayed is None:
                raise pb.StoreError(f"{where}: damaged snapshot")
            space, length = replayed.space, replayed.length
            if replayed.unsound:
                where = f"{where}: {replayed.unsound} at offset {length}"
                if not replayed.is_torn:
                    raise pb.StoreError(where)
        if space.revision < self.acknowledged:
            raise pb.StoreError(
                f"{where}: transactions are damaged, or missing: the key space is as of revision "
                f"{space.revision}, and revision {self.acknowledged} was acknowledged"
            )
        return space, length

    def append(self, transaction: KeySpaceTransaction) -> None:
        """Write a transaction.

        Raises:
            OSError: The transaction can't be written or synced. The log is rolled back now, or
                before the next transaction, unless it `has_failed`.
        """
        self._log.append(encode_transaction(transaction))
        self._record(transaction.revision)

    def snapshot(self, payload: bytes, revision: int) -> None:
        """Begin a log with a snapshot, and keep only the present log beside it. Blocks.

        Raises:
            OSError: The snapshot can't be written. The present log remains in use, and a later call
                tries again, unless the log `has_failed`.
        """
        before = self._log
        if _revision(before.path) == revision:
            return
        before.cut()
        self._snapshot_due_at = before.length + SNAPSHOT_BYTES  # If it fails.
        self._begin(payload, revision)
        before.close()
        self._keep(before.path)

    def close(self) -> None:
        """Close the log. Idempotent."""
        self._log.close()

    def salvage(self) -> KeySpace:
        """Return the key space of all sound transactions, and change no file.

        Raises:
            StoreError: The snapshot and the log before it are damaged or missing.
            OSError: A file can't be read.
        """
        if not (paths := self.paths):
            raise pb.StoreError(f"{self._directory}: all logs are missing")
        if (replayed := self._replay(paths[-1])) is not None:
            return replayed.space
        before = self._replay(paths[-2]) if len(paths) > 1 else None
        if before is None or before.unsound or before.space.revision < _revision(paths[-1]):
            raise pb.StoreError(f"{paths[-1]}: damaged snapshot")
        log = self._files.read_file(paths[-1])
        if (first := find_tagged_record(log, 0, _TRANSACTION_TAG)) is not None:
            _follow(before.space, log, first.offset)
        return before.space

    def replace(self, space: KeySpace) -> None:
        """Replace all logs by a snapshot of a key space.

        Raises:
            OSError: A file can't be written. The key space is damaged as before, or replaced.
        """
        self._begin(encode_snapshot(space), space.revision)
        self._keep()

    def _begin(self, payload: bytes, revision: int) -> None:
        """Begin a log with a snapshot."""
        record = encode_record(payload)
        path = self._path(revision)
        try:
            write_durably(self._files, path, record, sync=self._sync)
        except OSError:
            # Invariant: the next start continues the log that has the newest name.
            self._log.has_failed = path.exists()
            raise
        self._use(revision, len(record))
        self._record(revision)

    def _use(self, revision: int, length: int) -> None:
        self._log = RecordLog(self._files, self._path(revision), length, sync=self._sync)
        self._snapshot_due_at = length + SNAPSHOT_BYTES

    def _path(self, revision: int) -> Path:
        return self._directory / f"{revision:016x}.log"

    def _keep(self, *paths: Path) -> None:
        """Remove all logs but the present one and `paths`."""
        for path in self.paths:
            if path not in (self._log.path, *paths):
                self._files.unlink(path)

    def _record(self, revision: int) -> None:
        head = Head(_revision(self._log.path), revision, self._log.length)
        # Without the head, recovery after damage knows less of the transaction.
        with contextlib.suppress(OSError):
            self._heads.record(HEAD_NAME, head, durable=self._sync)

    def _replay(self, path: Path) -> _Replayed | None:
        """Read a log; return None if its snapshot is damaged."""
        log = self._files.read_file(path)
        records, _ = scan_records(log)
        try:
            space = decode_snapshot(records[0].payload)
        except (IndexError, ValueError):
            return None
        return _follow(space, log, records[0].end)


def _revision(path: Path) -> int:
    """Return the revision of a log's snapshot."""
    return int(path.stem, 16)


def _follow(space: KeySpace, log: bytes, offset: int) -> _Replayed:
    """Apply the sound transactions from an offset of a log on."""
    records, end = scan_records(log, offset)
    for record in records:
        try:
            transaction = decode_transaction(record.payload)
        except ValueError:
            return _Replayed(space, record.offset, "bad transaction", is_torn=False)
        if transaction.revision > space.revision + 1:
            # Invariant: revisions count transactions. Journals of missing transactions aren't
            # deleted, and their files must not be removed.
            text = f"transactions after revision {space.revision} are missing"
            return _Replayed(space, record.offset, text, is_torn=False)
        if transaction.revision > space.revision:
            space.commit(transaction)
    return _Replayed(space, end, "" if end == len(log) else "bad record", is_torn=True)
