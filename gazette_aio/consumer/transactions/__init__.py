"""Transactions of a shard: from the messages of its sources to commits of its store.

Imports `application`, and outside of consumers `message`, `client`, `aio` and `protocol`.
"""
