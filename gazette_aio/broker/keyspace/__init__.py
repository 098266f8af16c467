"""Key space: the specs of all journals, their durable log, and the data directory.

Imports `broker.host`, `serving`, `aio` and `protocol`.
"""
