"""Store whose state is a RocksDB database."""

from __future__ import annotations

import heapq
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.aio.threads import in_thread
from gazette_aio.client.appends.futures import finished_operation
from gazette_aio.consumer.stores.commits import Commits
from gazette_aio.consumer.stores.failures import explained
from gazette_aio.consumer.stores.removal import remove_directory
from gazette_aio.consumer.stores.rocksdb import encoding
from gazette_aio.consumer.stores.rocksdb.capture import DirectoryCapture
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import ConfigurationError, StoreError

try:
    from rocksdict import BlockBasedOptions, Options, Rdict, WriteBatch, WriteOptions
except ImportError as _error:
    raise ImportError(
        "RocksDBStore needs rocksdict: pip install 'gazette-aio[rocksdb]'"
    ) from _error

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator

    from google.protobuf.message import Message

    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.consumer.application import Shard
    from gazette_aio.consumer.recoverylog.recording.recorder import Recorder

_logger = logging.getLogger(__name__)

WRITE_BUFFER_BYTES: Final = 16 << 20
"""Length of writes in memory from which RocksDB writes a table, by default."""
MAX_MANIFEST_BYTES: Final = 128 << 10
"""Length of a manifest from which RocksDB begins another one. Its log is played as a whole."""
FLUSHED_LOG_BYTES: Final = 4 << 20
"""Length of logs of writes from which they're made tables before hints are stored."""
_CONFIG: Final = "rocksdict-config.json"


def default_options() -> Options:
    """Return options, as `RocksDBStore.default_options()`."""
    options = Options(raw_mode=True)
    tables = BlockBasedOptions()
    # Wire: the format of later releases is refused by those that others still run.
    tables.set_format_version(5)
    options.set_block_based_table_factory(tables)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    return options


class RocksDBStore:
    """Store whose state is a RocksDB database of bytes, for states of many gigabytes.

    With a recorder, the files of the database are recorded in the recovery log of the shard, in the
    form that Gazette's own RocksDB store reads and writes. Without one, it's a database of this
    machine: the state is lost to a member elsewhere that the shard moves to. RocksDB lets only one
    process open a directory.

    Changes of a transaction are made by `put()` and `delete()`, and `get()` and `items()` see them.
    A commit writes them at once. `db` is the database itself, in which they are after the commit;
    write nothing to it but by the store.

    Args:
        recorder: Recorder that `Application.new_store()` was given, or None.
        options: Options of rocksdict, which must be of `raw_mode=True`; by default, those of
            `default_options()`. The store sets some, so that files can be recorded. Direct writes,
            further paths and a write-ahead log elsewhere aren't supported.
        directory: Directory of the database if there's no recorder. It's made if it's missing.

    Raises:
        ConfigurationError: Both or none of `recorder` and `directory` are given.
    """

    def __init__(
        self,
        recorder: Recorder | None,
        *,
        options: Options | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        if (recorder is None) == (directory is None):
            raise ConfigurationError("RocksDBStore takes either a recorder or a directory")
        self.directory: Path = Path(recorder.directory if recorder is not None else directory or "")
        """Directory of the database."""
        self.batch: WriteBatch = WriteBatch(raw_mode=True)
        """Further changes of this transaction, such as of ranges, which `get()` doesn't see."""
        self._recorder = recorder
        self._options = default_options() if options is None else options
        self._commits = Commits()
        self._capture: DirectoryCapture | None = None
        self._db: Rdict | None = None
        self._pending: dict[bytes, bytes | None] = {}
        self._committing: dict[bytes, bytes | None] = {}
        self._failure = ""
        """Text of why the store can't be used any longer, or empty."""

    @staticmethod
    def default_options() -> Options:
        """Return new options of a database that releases of RocksDB from 6.6 on can open."""
        return default_options()

    @property
    def db(self) -> Rdict:
        """The database.

        Raises:
            StoreError: It isn't open.
        """
        if self._db is None:
            raise StoreError("the database isn't open: await open(), or restore the checkpoint")
        return self._db

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key as of this transaction, or None.

        It blocks for some microseconds if the value is in memory, else for a read of a file.

        Raises:
            StoreError: The database isn't open, or can't be read.
        """
        for changes in (self._pending, self._committing):
            if key in changes:
                return changes[key]
        with explained("reading the database", Exception):
            value: bytes | None = self.db.get(key)
            return value

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of a key.

        Raises:
            TypeError: Key or value isn't bytes.
        """
        for name, given in (("key", key), ("value", value)):
            if type(given) is not bytes:
                raise TypeError(f"{name}: expected bytes, not {type(given).__name__}")
        self._pending[key] = value

    def delete(self, key: bytes) -> None:
        """Delete a key, which may be missing."""
        self._pending[key] = None

    def items(self, begin: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values as of now, in the order of keys.

        Keys of checkpoints begin with a zero byte, and are among them.

        Args:
            begin: Key to begin at.
            end: Key to stop before; None for no limit.

        Raises:
            StoreError: The database isn't open, or can't be read.
        """
        changes = sorted(
            (key, value)
            for key, value in {**self._committing, **self._pending}.items()
            if key >= begin and (end is None or key < end)
        )
        # Invariant: the iterator is of the database as of now, so that it has at least all changes
        # that aren't in memory.
        return self._merged(changes, self.db.items(from_key=begin), end)

    def _merged(
        self, changes: list[tuple[bytes, bytes | None]], stored: Any, end: bytes | None
    ) -> Iterator[tuple[bytes, bytes]]:
        latest = b""
        is_first = True
        ordered = heapq.merge(
            ((key, 0, value) for key, value in changes),
            ((key, 1, value) for key, value in _until(stored, end)),
        )
        for key, _, value in ordered:
            if key == latest and not is_first:
                continue
            latest, is_first = key, False
            if value is not None:
                yield key, value

    async def open(self) -> None:
        """Open the database. Restoring the checkpoint does that, too. Idempotent.

        Raises:
            ConfigurationError: The options aren't of raw mode.
            StoreError: It can't be opened, or not be recorded; or that, or a commit, has failed.

        Cancellation: safe — it may be open.
        """
        if self._failure:
            raise StoreError(self._failure)
        if self._db is None:
            await in_thread(self._open)

    def start_commit(
        self,
        shard: Shard,  # noqa: ARG002 - The database is of one shard.
        checkpoint: Checkpoint,
        wait_for: Collection[OpFuture[Any]],
        /,
    ) -> OpFuture[None]:
        """Begin to write changes and checkpoint as one batch. See `Store.start_commit()`."""
        if self._db is None or self._failure:
            return finished_operation(StoreError(self._failure or "the database isn't open"))
        batch, self.batch = self.batch, WriteBatch(raw_mode=True)
        changes, self._pending = self._pending, {}
        self._committing = changes
        stored = Checkpoint()
        stored.CopyFrom(checkpoint)
        if self._recorder is not None:
            # Invariant: nothing that is recorded after it is committed before `wait_for`.
            opening = self._recorder.barrier(wait_for)
            commit = self._commits.start_recorded(
                opening, lambda: in_thread(self._write_recorded, batch, changes, stored)
            )
        else:
            commit = self._commits.start(
                wait_for, lambda: in_thread(self._write, batch, changes, stored, sync=True)
            )
        commit.operation.when_done(lambda: self._committed(commit, changes))
        return commit

    async def restore_checkpoint(
        self,
        shard: Shard,  # noqa: ARG002 - The database is of one shard.
        /,
    ) -> Checkpoint:
        """Open the database if it isn't, drop changes of this transaction, and read the checkpoint.

        Raises:
            ConfigurationError: The options aren't of raw mode.
            StoreError: The database can't be opened, read or recorded, or that, or a commit, has
                failed.

        Cancellation: safe — the database may be open.
        """
        await self.open()
        self._pending.clear()
        self.batch.clear()
        return await in_thread(self._read_checkpoint)

    async def destroy(self) -> None:
        """End the commit under way, close the database, and remove the directory of a recorder.

        A directory without a recorder has the only copy of the state, and stays.

        Cancellation: safe — call again.
        """
        await self._commits.aclose()
        if self._recorder is not None:
            self._recorder.before_hints = None
        await in_thread(self._close)

    def _open(self) -> None:
        """Open the database. Runs in a thread."""
        if self._db is not None:
            return
        options, recorder = self._options, self._recorder
        options.create_if_missing(create_if_missing=True)
        # What is recorded is what files are extended by.
        options.set_recycle_log_file_num(0)
        options.set_allow_mmap_writes(False)
        options.set_max_manifest_file_size(MAX_MANIFEST_BYTES)
        with explained("opening the database", Exception):
            self.directory.mkdir(parents=True, exist_ok=True)
            # Before: opening a database changes its files.
            capture = None if recorder is None else DirectoryCapture(self.directory, recorder)
            try:
                db = Rdict(str(self.directory), options)
                try:
                    _check_mode(self.directory)
                    if capture is not None:
                        capture.capture()
                except BaseException:
                    db.close()
                    raise
            except BaseException:
                if capture is not None:
                    # Files may differ from what is recorded of them.
                    self._failure = "opening has failed: make another store"
                raise
        self._db, self._capture = db, capture
        if recorder is not None:
            recorder.before_hints = self._flush

    def _write_recorded(
        self, batch: WriteBatch, changes: dict[bytes, bytes | None], checkpoint: Checkpoint
    ) -> OpFuture[Any]:
        """Write a commit, and return the barrier of what was recorded. Runs in a thread."""
        capture, recorder = self._capture, self._recorder
        assert capture is not None
        assert recorder is not None
        capture.commit(lambda: self._write(batch, changes, checkpoint, sync=False))
        return recorder.barrier()

    def _write(
        self,
        batch: WriteBatch,
        changes: dict[bytes, bytes | None],
        checkpoint: Checkpoint,
        *,
        sync: bool,
    ) -> None:
        with explained("writing the database", Exception):
            for key, value in changes.items():
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
            batch.put(encoding.CHECKPOINT_KEY, _serialized(checkpoint))
            for journal, source in checkpoint.sources.items():
                batch.put(encoding.offset_key(journal), encoding.encode_offset(source.read_through))
            options = WriteOptions()
            options.sync = sync
            self.db.write(batch, options)

    def _committed(self, commit: OpFuture[None], changes: dict[bytes, bytes | None]) -> None:
        if commit.exception() is not None:
            self._failure = "a commit has failed: make another store"
        elif self._committing is changes:
            self._committing = {}

    def _read_checkpoint(self) -> Checkpoint:
        with explained("reading the database", Exception):
            stored: bytes | None = self.db.get(encoding.CHECKPOINT_KEY)
            if stored is not None:
                return Checkpoint.FromString(stored)
            checkpoint = Checkpoint()
            rows = _until(self.db.items(from_key=encoding.OFFSETS_PREFIX), encoding.OFFSETS_END)
            for key, value in rows:
                source = checkpoint.sources[encoding.journal_of(key)]
                source.read_through = encoding.decode_offset(value)
            return checkpoint

    async def _flush(self) -> None:
        """Have long logs of writes become tables, which hints name at less cost."""
        if (capture := self._capture) is not None:
            await in_thread(self._flush_long_logs, capture)

    def _flush_long_logs(self, capture: DirectoryCapture) -> None:
        """Flush long logs, and record the tables. Runs in a thread."""
        if capture.live_log_bytes >= FLUSHED_LOG_BYTES:
            with explained("flushing the database", Exception):
                capture.capture(lambda: self.db.flush(wait=True))

    def _close(self) -> None:
        db, self._db = self._db, None
        capture, self._capture = self._capture, None
        try:
            if capture is not None:
                capture.close()
            if db is not None:
                db.close()
        except Exception:
            _logger.exception("failed to close the database of a store: %s", self.directory)
        if self._recorder is not None:
            remove_directory(self.directory)

    def __repr__(self) -> str:
        recorded = "recorded " if self._recorder is not None else ""
        return f"<RocksDBStore in the {recorded}directory {str(self.directory)!r}>"


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


def _until(stored: Any, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    for key, value in stored:
        if end is not None and key >= end:
            return
        yield key, value


def _check_mode(directory: Path) -> None:
    """Check that keys and values are bytes as they are.

    Raises:
        ConfigurationError: They're those of Python objects.
    """
    config = json.loads((directory / _CONFIG).read_bytes())
    if not config.get("raw_mode"):
        raise ConfigurationError("RocksDBStore takes options of raw_mode=True")
