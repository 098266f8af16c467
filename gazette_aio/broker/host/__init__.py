"""Base of all parts of a broker: options, clock, scheduler, workers, files, log records.

Imports `serving`, `aio` and `protocol`.
"""
