"""Fragments of a journal: local files, their commit logs and recovery, persisted files, the index.

Imports `broker.host`, `broker.stores`, `aio` and `protocol`.
"""
