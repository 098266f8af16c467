"""SQLite as a store of shards, whose database file is recorded in a recovery log.

`store` is what applications use, on an `engine`. `wal` finds committed pages in the bytes of a
write-ahead log, `capture` records them, and `databases` records database files. `vfs` is another
engine, which sees all writes, and its store. `importing` turns databases of Gazette's own SQLite
store into files.
Imports `stores`, `consumer.application`, `client`, `aio` and `protocol`.
"""
