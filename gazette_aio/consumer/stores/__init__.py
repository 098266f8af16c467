"""Stores of shards: state and checkpoint, committed as one.

Imports `consumer.application`, `consumer.transactions.checkpoints`, `message`, `client`, `aio` and
`protocol`. SQLAlchemy is imported only for `SQLStore`, apsw for `SQLiteVFSStore`, and
rocksdict for `RocksDBStore` and `import_page_database()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio._lazy import at_first_use
from gazette_aio.consumer.stores.compare_and_set import CompareAndSetStore, StoredRecord
from gazette_aio.consumer.stores.json_file import JSONFileStore
from gazette_aio.consumer.stores.memory import MemoryDatabase, MemoryStore

if TYPE_CHECKING:
    from gazette_aio.consumer.stores.rocksdb.store import RocksDBStore
    from gazette_aio.consumer.stores.sql import SQLStore
    from gazette_aio.consumer.stores.sql_table import checkpoint_table
    from gazette_aio.consumer.stores.sqlite.importing import import_page_database
    from gazette_aio.consumer.stores.sqlite.store import SQLiteStore
    from gazette_aio.consumer.stores.sqlite.vfs import SQLiteVFSStore

__all__ = [
    "CompareAndSetStore",
    "JSONFileStore",
    "MemoryDatabase",
    "MemoryStore",
    "RocksDBStore",
    "SQLStore",
    "SQLiteStore",
    "SQLiteVFSStore",
    "StoredRecord",
    "checkpoint_table",
    "import_page_database",
]

_MODULES = {
    "RocksDBStore": "gazette_aio.consumer.stores.rocksdb.store",
    "SQLStore": "gazette_aio.consumer.stores.sql",
    "SQLiteStore": "gazette_aio.consumer.stores.sqlite.store",
    "SQLiteVFSStore": "gazette_aio.consumer.stores.sqlite.vfs",
    "checkpoint_table": "gazette_aio.consumer.stores.sql",
    "import_page_database": "gazette_aio.consumer.stores.sqlite.importing",
}


if not TYPE_CHECKING:  # With these functions, type checkers would accept any name.
    __getattr__, __dir__ = at_first_use(globals(), _MODULES)
