"""Store on RocksDB, whose files are recorded as they change.

`capture` tells what has happened in the directory of a database, `encoding` has the keys and values
of checkpoints. Imports rocksdict, of the extra `gazette-aio[rocksdb]`.
"""
