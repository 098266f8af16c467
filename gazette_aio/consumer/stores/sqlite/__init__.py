"""SQLite as a store of shards, whose database files are recorded in a recovery log.

`store` is what applications use, `vfs` notes what SQLite writes, and `databases` records it.
Imports `stores`, `consumer.application`, `client`, `aio` and `protocol`.
"""

import importlib.util

if importlib.util.find_spec("apsw") is None:
    raise ImportError("SQLiteStore needs apsw: pip install 'gazette-aio[consumer]'")
