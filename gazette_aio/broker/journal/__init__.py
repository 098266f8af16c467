"""A journal's content: its spool and logs, recovery, the index of fragments, and persisting them.

Imports `broker.host`, `broker.stores`, `broker.keyspace`, `aio` and `protocol`.
"""
