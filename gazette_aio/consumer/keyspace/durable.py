"""Durable keys of an embedded store, in a database of SQLite."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from gazette_aio.consumer.keyspace.errors import KeyValueStoreError
from gazette_aio.consumer.keyspace.operations import KeyValue

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_FILE = "keys.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS store (revision INTEGER NOT NULL, cluster_id INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS keys (
    key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL,
    create_revision INTEGER NOT NULL, mod_revision INTEGER NOT NULL, version INTEGER NOT NULL
) WITHOUT ROWID;
"""


class DurableKeys:
    """Database of keys. All methods block, and one thread at a time may call them.

    The database stays locked while it's open, so that a second process is refused.

    Args:
        directory: Directory of the database. It's made if it doesn't exist.
        cluster_id: Identity of the store, if the database is new.

    Raises:
        KeyValueStoreError: The database is in use, damaged, or can't be written.
    """

    def __init__(self, directory: Path, cluster_id: int) -> None:
        self._path = directory / _FILE
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False, timeout=0
            )
        except (OSError, sqlite3.Error) as error:
            raise self._error(error) from error
        try:
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("BEGIN EXCLUSIVE")
            for statement in filter(str.strip, _SCHEMA.split(";")):
                self._db.execute(statement)
            if self._db.execute("SELECT count(*) FROM store").fetchone() == (0,):
                self._db.execute("INSERT INTO store VALUES (1, ?)", (cluster_id,))
            self._db.execute("COMMIT")
            self.revision: int
            self.cluster_id: int
            self.revision, self.cluster_id = self._db.execute(
                "SELECT revision, cluster_id FROM store"
            ).fetchone()
        except sqlite3.Error as error:
            self._db.close()
            raise self._error(error) from error

    def load(self) -> list[KeyValue]:
        """Return all keys, in order."""
        try:
            with closing(self._db.execute("SELECT * FROM keys ORDER BY key")) as rows:
                return [KeyValue(*row) for row in rows]
        except sqlite3.Error as error:
            raise self._error(error) from error

    def commit(self, revision: int, puts: Iterable[KeyValue], deletes: Iterable[str]) -> None:
        """Write a transaction, durably and atomically.

        Raises:
            KeyValueStoreError: It can't be written. Nothing of it is.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany("DELETE FROM keys WHERE key = ?", ((key,) for key in deletes))
                self._db.executemany(
                    "REPLACE INTO keys VALUES (?, ?, ?, ?, ?)",
                    (
                        (put.key, put.value, put.create_revision, put.mod_revision, put.version)
                        for put in puts
                    ),
                )
                self._db.execute("UPDATE store SET revision = ?", (revision,))
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._error(error) from error

    def close(self) -> None:
        """Close the database. Idempotent."""
        self._db.close()

    def _error(self, error: Exception) -> KeyValueStoreError:
        return KeyValueStoreError(f"key space in {self._path}: {error}")
