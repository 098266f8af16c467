"""Control of a broker by tests: rules for requests, and handles of rules.

Imports `broker.host`, `broker.stores`, `serving`, `aio` and `protocol`.
"""
