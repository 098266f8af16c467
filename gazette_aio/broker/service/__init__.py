"""Services: one module for each kind of request. None of them knows how requests arrive.

Imports `broker.core` and the rooms below it, `serving`, `aio` and `protocol`.
"""
