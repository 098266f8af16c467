"""SQLite as a store of shards, whose database file is recorded in a recovery log.

`wal` finds committed pages in the bytes of a write-ahead log, `capture` records them, and `store`
is what applications use. `importing` turns databases of Gazette's own SQLite store into files.
Imports `stores`, `consumer.application`, `client`, `aio` and `protocol`.
"""
