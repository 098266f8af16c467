"""Key space: which journals exist, their durable log, and the data directory.

Imports `broker.host`, `serving`, `aio` and `protocol`.
"""
