"""Log of the key space: its transactions, and snapshots that shorten the log."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import struct
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import in_thread_slices
from gazette_aio.broker.host.files import (
    FileOps,
    make_durable_directory,
    opened,
    write_durably,
)
from gazette_aio.broker.host.marks import Mark, MarkFile, newest_mark, path_of_boot
from gazette_aio.broker.host.records import encode_record, find_tagged_record, scan_records
from gazette_aio.broker.keyspace.keyspace import JournalItem, KeySpace, KeySpaceTransaction

if TYPE_CHECKING:
    from pathlib import Path

_logger = logging.getLogger(__name__)

SNAPSHOT_BYTES = 1 << 20
"""Length of the log from which a snapshot is due."""

TAG = b"jm"
MARK_NAME = "acknowledged"
PREVIOUS_NAME = "previous"
"""Directory of the files that the snapshot replaced, in case the snapshot is damaged."""
_HEAD = struct.Struct("<2sqI")
_PUT = struct.Struct("<BIq")
_DELETE_KIND, _PUT_KIND = 0, 1


def encode_transaction(transaction: KeySpaceTransaction) -> bytes:
    """Return the payload of a transaction's record."""
    parts = [
        _HEAD.pack(TAG, transaction.revision, len(transaction.puts) + len(transaction.deletes))
    ]
    for spec in transaction.puts:
        data = spec.SerializeToString()
        parts += [_PUT.pack(_PUT_KIND, len(data), transaction.revision), data]
    for name in transaction.deletes:
        data = name.encode()
        parts += [_PUT.pack(_DELETE_KIND, len(data), 0), data]
    return b"".join(parts)


def decode_transaction(payload: bytes) -> KeySpaceTransaction:
    """Return the transaction of a payload.

    Raises:
        ValueError: The payload isn't a transaction.
    """
    try:
        tag, revision, count = _HEAD.unpack_from(payload)
        puts: list[pb.JournalSpec] = []
        deletes: list[str] = []
        position = _HEAD.size
        for _ in range(count):
            kind, length, _revision = _PUT.unpack_from(payload, position)
            position += _PUT.size
            data = payload[position : position + length]
            position += length
            if len(data) != length:
                raise ValueError("short operation")
            if kind == _PUT_KIND:
                puts.append(pb.JournalSpec.FromString(data))
            else:
                deletes.append(data.decode())
    except (struct.error, DecodeError) as error:
        raise ValueError(str(error)) from None
    if tag != TAG or position != len(payload):
        raise ValueError("not a transaction")
    return KeySpaceTransaction(revision, tuple(puts), tuple(deletes))


_ITEM = struct.Struct("<qqI")


def encode_snapshot(space: KeySpace) -> bytes:
    """Return the payload of a snapshot's only record."""
    parts = [_HEAD.pack(TAG, space.revision, len(space))]
    for item in in_thread_slices(space):
        data = item.spec.SerializeToString()
        parts += [_ITEM.pack(item.create_revision, item.mod_revision, len(data)), data]
    return b"".join(parts)


def decode_snapshot(payload: bytes) -> tuple[list[JournalItem], int]:
    """Return the items and the revision of a snapshot.

    Raises:
        ValueError: The payload isn't a snapshot.
    """
    try:
        tag, revision, count = _HEAD.unpack_from(payload)
        items: list[JournalItem] = []
        position = _HEAD.size
        for _ in range(count):
            created, modified, length = _ITEM.unpack_from(payload, position)
            position += _ITEM.size
            spec = pb.JournalSpec.FromString(payload[position : position + length])
            items.append(JournalItem(spec, created, modified))
            position += length
    except (struct.error, DecodeError) as error:
        raise ValueError(str(error)) from None
    if tag != TAG or position != len(payload):
        raise ValueError("not a snapshot")
    return items, revision


class MetaLog:
    """Log of the key space in a directory. All methods block.

    Args:
        directory: Directory of the log and its snapshots.
        sync: Whether writes are made durable before they return.
    """

    def __init__(self, files: FileOps, directory: Path, *, sync: bool) -> None:
        self._files = files
        self._directory = directory
        self._sync = sync
        self._descriptor = -1
        self._number = 0
        self._length = 0
        self._snapshot_at = 0
        self._is_torn = False
        self.has_failed: bool = False
        """Whether it's unknown what is on disk: a restart has to read it before more is written."""
        path = directory / MARK_NAME
        marked = path if sync else path_of_boot(files, path)
        self._mark = None if marked is None else MarkFile(files, marked)

    def __repr__(self) -> str:
        return f"<MetaLog number={self._number} bytes={self._length}>"

    @property
    def snapshot_is_due(self) -> bool:
        """Whether the log is so long that a snapshot is due."""
        return self._length > max(SNAPSHOT_BYTES, self._snapshot_at)

    def load(self, known_revision: int = 0) -> KeySpace:
        """Read the key space, and open the log for further transactions.

        Args:
            known_revision: A revision that other files show to have been acknowledged.

        Raises:
            StoreError: Acknowledged transactions are damaged or missing; the text names file and
                offset.
            OSError: The log can't be read, or made durable.
        """
        make_durable_directory(self._files, self._directory, sync=self._sync)
        space, torn_at = self.read(known_revision)
        snapshots, logs = self._list()
        written = written_logs(logs)
        if torn_at is not None:
            self.cut(torn_at)
        self._number = int(logs[-1].stem) if logs else 1
        self._descriptor = self._files.open(self._log_path(), os.O_RDWR | os.O_CREAT)
        try:
            self._length = self._files.size(self._descriptor)
            if self._sync:
                # Transactions may be in the page cache only, and clients will see them.
                for path in (*snapshots, *written):
                    with opened(self._files, path, os.O_RDWR) as descriptor:
                        self._files.datasync(descriptor)
                self._files.sync_directory(self._directory)
        except BaseException:
            self.close()
            raise
        return space

    def read(self, known_revision: int = 0) -> tuple[KeySpace, int | None]:
        """Read the key space, and change no file. See `load()`.

        Returns:
            The key space, and the offset at which the torn end of the newest log begins, or None.
        """
        space, torn_at = self.replay()
        mark = newest_mark(self._files, self._directory / MARK_NAME)
        known = max(known_revision, 0 if mark is None else mark.end)
        if space.revision < known:
            where = f"{self._directory}"
            if torn_at is not None:
                where = f"{written_logs(self._list()[1])[-1]} at {torn_at}"
            raise pb.StoreError(
                f"{where}: transactions are damaged, or missing: the key space is as of revision "
                f"{space.revision}, and revision {known} was acknowledged"
            )
        return space, torn_at

    def replay(self) -> tuple[KeySpace, int | None]:
        """Do the same as `read()`, assuming that no transaction is missing at the end."""
        space = key_space_of_snapshot(self._files, self._directory)
        written = written_logs(self._list()[1])
        torn_at: int | None = None
        for path in written:
            torn_at = self._replay(path, space, is_last=path == written[-1])
        return space, torn_at

    def cut(self, length: int) -> None:
        """Cut the torn end off the newest log."""
        _, logs = self._list()
        path = written_logs(logs)[-1]
        _logger.info("cut a torn transaction", extra={"path": str(path), "offset": length})
        with opened(self._files, path, os.O_RDWR) as descriptor:
            self._files.truncate(descriptor, length)

    def append(self, transaction: KeySpaceTransaction) -> None:
        """Write a transaction.

        Raises:
            OSError: The transaction can't be written or synced. The log is rolled back now, or
                before the next transaction, unless it `has_failed`.
        """
        assert not self.has_failed, "a failed log isn't written"
        self._roll_back()
        record = encode_record(encode_transaction(transaction))
        self._is_torn = True
        try:
            self._files.pwrite(self._descriptor, record, self._length)
            self._datasync()
        except OSError:
            if not self.has_failed:
                with contextlib.suppress(OSError):
                    self._roll_back()
            raise
        self._is_torn = False
        self._length += len(record)
        if self._mark is not None:
            # Without the mark, recovery after damage knows less of the transaction.
            with contextlib.suppress(OSError):
                self._mark.write(Mark(self._number, transaction.revision, self._length))

    def _roll_back(self) -> None:
        """Cut off a transaction whose write failed."""
        if self._is_torn:
            self._files.truncate(self._descriptor, self._length)
            self._datasync()
            self._is_torn = False

    def _datasync(self) -> None:
        if not self._sync:
            return
        try:
            self._files.datasync(self._descriptor)
        except OSError as error:
            # Invariant: after other failures nothing is synced again, since a second sync could
            # succeed without the writes that the failed sync lost.
            self.has_failed = error.errno not in (errno.ENOSPC, errno.EDQUOT)
            raise

    def snapshot(self, payload: bytes, revision: int) -> None:
        """Write a snapshot, begin a new log, and remove the replaced files. Blocks.

        Raises:
            OSError: The snapshot can't be written. The present log remains in use, and a later call
                tries again.
        """
        if not self._length:
            return
        # The present log remains if a crash comes before its removal.
        self._roll_back()
        self._snapshot_at = self._length + SNAPSHOT_BYTES
        snapshots, logs = self._list()
        target = snapshot_path(self._directory, revision)
        write_durably(self._files, target, encode_record(payload), sync=self._sync)
        following = self._log_path(self._number + 1)
        descriptor = self._files.open(following, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            if self._sync:
                self._files.sync_directory(self._directory)
        except BaseException:
            self._files.close(descriptor)
            raise
        previous, self._descriptor = self._descriptor, descriptor
        self._number += 1
        self._length = self._snapshot_at = 0
        self._files.close(previous)
        self._keep([path for path in (*logs, *snapshots) if path != target])

    def _keep(self, replaced: list[Path]) -> None:
        """Keep the files that the newest snapshot replaced, and remove older ones."""
        previous = self._directory / PREVIOUS_NAME
        self._files.make_directory(previous)
        for path in previous.iterdir():
            self._files.unlink(path)
        for path in replaced:
            self._files.rename(path, previous / path.name)

    def close(self) -> None:
        """Close the log. Idempotent."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._files.close(descriptor)

    def _log_path(self, number: int | None = None) -> Path:
        return self._directory / f"{number or self._number:06d}.log"

    def _list(self) -> tuple[list[Path], list[Path]]:
        return list_files(self._directory)

    def _replay(self, path: Path, space: KeySpace, *, is_last: bool) -> int | None:
        """Replay a log, and return the offset of its torn end, or None."""
        data = self._files.read_file(path)
        records, end = scan_records(data)
        for record in records:
            try:
                transaction = decode_transaction(record.payload)
            except ValueError as error:
                raise pb.StoreError(f"{path}: bad transaction at offset {record.offset}") from error
            if transaction.revision > space.revision + 1:
                # Invariant: revisions count transactions. Journals of missing transactions aren't
                # deleted, and their files must not be removed.
                raise pb.StoreError(
                    f"{path}: transactions after revision {space.revision} are missing "
                    f"at offset {record.offset}"
                )
            if transaction.revision > space.revision:
                space.commit(transaction)
        if end == len(data):
            return None
        # A crash can tear only the end of the newest log. Other damage is an error.
        if not is_last or find_tagged_record(data, end, TAG) is not None:
            raise pb.StoreError(f"{path}: bad record at offset {end}")
        return end


def list_files(directory: Path) -> tuple[list[Path], list[Path]]:
    """Return the snapshots and the logs of a directory, oldest first."""
    paths = sorted(directory.iterdir(), key=lambda path: (len(path.name), path.name))
    snapshots = [p for p in paths if p.suffix == ".bin" and p.stem.startswith("snapshot-")]
    return snapshots, [p for p in paths if p.suffix == ".log" and p.stem.isdecimal()]


def written_logs(logs: list[Path]) -> list[Path]:
    """Return the logs that have content."""
    # A failed snapshot leaves an empty log after the log in use.
    return [path for path in logs if path.stat().st_size]


def snapshot_path(directory: Path, revision: int) -> Path:
    """Return the path of the snapshot of a revision."""
    return directory / f"snapshot-{revision:016x}.bin"


def key_space_of_snapshot(files: FileOps, directory: Path) -> KeySpace:
    """Return the key space that the logs of a directory continue.

    Raises:
        StoreError: The snapshot is damaged or missing.
    """
    space = KeySpace()
    snapshots, logs = list_files(directory)
    if snapshots:
        space.restore(*_load_snapshot(files, snapshots[-1]))
    elif logs and int(logs[0].stem) > 1:
        # The first log continues an empty key space, and each later log a snapshot.
        raise pb.StoreError(f"{directory}: the snapshot before {logs[0].name} is missing")
    return space


def _load_snapshot(files: FileOps, path: Path) -> tuple[list[JournalItem], int]:
    records, _ = scan_records(files.read_file(path))
    if len(records) == 1:
        try:
            return decode_snapshot(records[0].payload)
        except ValueError as error:
            _logger.warning("ignored a snapshot", extra={"path": str(path)}, exc_info=error)
    raise pb.StoreError(f"{path}: damaged snapshot")
