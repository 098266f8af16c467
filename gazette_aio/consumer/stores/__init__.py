"""Stores of shards: state and checkpoint, committed as one.

Imports `consumer.application`, `message`, `client`, `aio` and `protocol`. SQLAlchemy is imported
only for `SQLStore`, apsw for `SQLiteStore`, and rocksdict for `RocksDBStore`.

A store commits in the background while the next transaction runs, so that `start_commit()` fixes
what a commit has before it awaits anything. `testing.check_store()` holds all stores to the same
promises. A fence belongs to whoever restored last: the register of a recovery log, a counter in
SQL, or a file under `flock`.

* `JSONFileStore` refuses states that JSON doesn't restore. A walk checks plain dicts, which takes
  less time than decoding. Typed states are decoded and compared, as a member may have a value that
  isn't of its type.
* `SQLStore` commits by `UPDATE … WHERE fence = …`, which waits for a former owner's commit, or
  finds no row. Transactions of a shard don't overlap by default: under READ COMMITTED the next
  wouldn't see the writes of a commit under way. On SQLite it begins by `BEGIN IMMEDIATE`, as the
  upgrade of a read lock can fail; a statement runs to its end, since a cancelled one would keep its
  locks.
* `RocksDBStore` watches its directory, as no binding shows what RocksDB writes. Logs of more than 4
  MiB are flushed before hints are built, since a log is live as a whole.
* `SQLiteStore` notes where databases are written, and records these places after the commit, all
  databases in one append. Nothing in its VFS may raise: the connection would silently write
  nothing. An update in place keeps all of the log alive, so that a database is copied in the log,
  piece by piece with commits, once playback would exceed 1.5 times its size and 8 MiB; playback
  stays within three times the size and 16 MiB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio._lazy import at_first_use
from gazette_aio.consumer.stores.json_file import JSONFileStore as JSONFileStore
from gazette_aio.consumer.stores.memory import (
    MemoryDatabase as MemoryDatabase,
    MemoryStore as MemoryStore,
)

if TYPE_CHECKING:
    from gazette_aio.consumer.stores.rocksdb.store import RocksDBStore as RocksDBStore
    from gazette_aio.consumer.stores.sql import SQLStore as SQLStore
    from gazette_aio.consumer.stores.sql_table import checkpoint_table as checkpoint_table
    from gazette_aio.consumer.stores.sqlite.store import SQLiteStore as SQLiteStore

if not TYPE_CHECKING:  # With these functions, type checkers would accept any name.
    __getattr__, __dir__ = at_first_use(globals())
