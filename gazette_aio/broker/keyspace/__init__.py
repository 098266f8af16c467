"""The key space: which journals exist, its durable log, and the data directory.

Imports `broker.host`, `aio` and `protocol`.
"""
