"""Allocator: which members of a group hold which items, and the steps that lead there.

Imports `consumer.keyspace`, `aio` and `protocol`.
"""
