"""Control of a broker by tests: rules for requests, and the handles which tests hold.

Imports `broker.host`, `broker.stores`, `serving`, `aio` and `protocol`.
"""
