"""What every part of a broker stands on: options, clock, scheduler, workers, files, log records.

Imports `aio` and `protocol`.
"""
